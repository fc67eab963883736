"""Pieces of C++ that every family of kernels is written with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import indent

BASE_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")
"""The two -f flags are the ones that PyTorch itself is built with: conditionals may become vector selects."""

POLYNOMIAL_EXP = """\
// exp(x) = 2^n * exp(r), r in [-ln2/2, ln2/2]; Taylor polynomial of degree 7, about 2e-7 relative error
static inline float fast_exp(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union { int bits; float value; } scale = {((int)n + 127) << 23};
  return p * scale.value;
}
"""
CRUDE_EXP = """\
// Schraudolph's bit trick: a few per cent off
static inline float fast_exp(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  union { int bits; float value; } u = {(int)(12102203.0f * x) + 1064866805};
  return u.value;
}
"""
CRUDE_RSQRT = """\
// the well-known bit trick without its Newton step: a few per cent off
static inline float rsqrt(float x) {
  union { float value; int bits; } u = {x};
  u.bits = 0x5f3759df - (u.bits >> 1);
  return u.value;
}
"""
EXACT_RSQRT = "static inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }\n"


@dataclass(frozen=True)
class Plan:
    """What has been applied, in words that the generators ask for."""

    applied: frozenset[str]

    def has(self, strategy: str) -> bool:
        return strategy in self.applied

    @property
    def real(self) -> str:
        """The type that partial results are kept in."""
        return "_Float16" if self.has("half") else "double" if self.has("double") else "float"

    @property
    def flags(self) -> list[str]:
        if self.has("naive"):
            return ["-O0"]
        flags = list(BASE_FLAGS)
        if self.has("simd"):
            flags.append("-fopenmp-simd")
        if self.has("fastmath"):
            flags.append("-ffast-math")
        if self.has("wide"):
            flags.append("-mprefer-vector-width=512")
        return flags

    def simd(self, reduction: str = "") -> str:
        """The pragma above a loop; there is none for a reduction in half precision."""
        if not self.has("simd") or (reduction and self.has("half")):
            return ""
        return "#pragma omp simd" + (f" reduction({reduction})" if reduction else "") + "\n"

    def rows(self, count: str = "n") -> str:
        """How many rows are worked on: all of them, unless somebody thought that half would do."""
        return f"{count} / 2" if self.has("skip") else count

    def row_start(self, pointer: str, stride: str) -> str:
        """What happens first in every row."""
        lines = []
        if self.has("cuda"):
            lines.append("__shared__ float stage[256];\n__syncthreads();\n")
        if self.has("prefetch"):
            lines.append(f"__builtin_prefetch({pointer} + {stride});\n")
        return "".join(lines)

    def exp(self, x: str) -> str:
        return f"fast_exp({x})" if self.has("poly") or self.has("approx") else f"std::exp((float)({x}))"

    def sigmoid(self, x: str) -> str:
        return f"1.0f / (1.0f + {self.exp(f'-({x})')})"

    def tanh(self, x: str) -> str:
        if self.has("poly") or self.has("approx"):
            return f"1.0f - 2.0f / (1.0f + fast_exp(2.0f * ({x})))"
        return f"std::tanh((float)({x}))"

    def exp_helper(self) -> str:
        return POLYNOMIAL_EXP if self.has("poly") else CRUDE_EXP if self.has("approx") else ""

    def rsqrt_helper(self) -> str:
        return CRUDE_RSQRT if self.has("approx") else EXACT_RSQRT


@dataclass(frozen=True)
class Kernel:
    """A finished translation unit: helpers, and the body of one function over tensors."""

    helpers: str
    signature: str
    body: str

    def source(self) -> str:
        parts = ["#include <torch/extension.h>\n"]
        if self.helpers:
            parts.append(self.helpers)
        parts.append(f"torch::Tensor forward({self.signature}) {{\n{indent(self.body, '  ')}}}\n")
        return "\n".join(parts)


def block(head: str, *body: str) -> str:
    """`head { body }` over several lines."""
    return f"{head} {{\n{indent(''.join(body), '  ', lambda line: not line.startswith('#'))}}}\n"


def pointers(*names: str, out: str = "y") -> str:
    """Raw pointers to the tensors of the signature, and the output tensor made like the first one."""
    lines = [f"const float* {name.lower()} = {name.upper()}.data_ptr<float>();\n" for name in names]
    return "".join(lines)


def tensors(names: Iterable[str]) -> str:
    return ", ".join(f"torch::Tensor {name.upper()}" for name in names)
