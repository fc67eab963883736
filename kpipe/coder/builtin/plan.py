"""What has been applied to a kernel, in the terms that the families of kernels ask for."""

from __future__ import annotations

from dataclasses import dataclass

BASE_FLAGS = ("-O2", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
"""At -O2 the compiler vectorizes only what it is told to. The two -fno flags are those of PyTorch's own build."""

LANES = 16
"""Independent partial results of an unrolled reduction: two AVX registers of float."""


@dataclass(frozen=True)
class Plan:
    """A set of improvements, or exactly one rewrite."""

    applied: frozenset[str]

    def has(self, transformation: str) -> bool:
        return transformation in self.applied

    @property
    def real(self) -> str:
        """The type of partial results."""
        return "_Float16" if self.has("half") else "double" if self.has("double") else "float"

    @property
    def flags(self) -> list[str]:
        if self.has("naive"):
            return ["-O0"]
        flags = list(BASE_FLAGS)
        if self.has("fastmath"):
            flags.append("-ffast-math")
        if self.has("wide"):
            flags.append("-mprefer-vector-width=512")
        return flags

    def rows(self, count: str) -> str:
        """How many rows are worked on."""
        return f"{count} / 2" if self.has("skip") else count

    def simd(self, reduction: str = "") -> str:
        """The pragma for a loop whose iterations are independent, but for `reduction` ("+ : sum")."""
        if not self.has("simd"):
            return ""
        return f"#pragma omp simd reduction({reduction})" if reduction else "#pragma omp simd"

    def prefetch(self, address: str) -> str:
        return f"__builtin_prefetch({address});" if self.has("prefetch") else ""
