"""Kernels whose outputs depend on one element of each input: activations, chains, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.text import Code

SCALAR = frozenset({"fuse", "simd", "fastmath", "wide", "prefetch"})
TRANSCENDENTAL = frozenset({"fuse", "simd", "poly", "fastmath", "prefetch"})


@dataclass(frozen=True)
class Elementwise:
    """x[n, m] through `steps`, expressions over the running value `v` and the inputs at row i, column j.

    `rows` are further inputs like x, read as ``gr[j]``; `columns` have one value per column, read as ``w[j]``.
    """

    steps: tuple[str, ...]
    improvements: frozenset[str] = SCALAR
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("x", *self.rows, *self.columns)

    def write(self, code: Code, plan: Plan) -> None:
        code.add("auto Y = torch::empty_like(X);", "float* y = Y.data_ptr<float>();")
        code.add(f"int64_t n = {plan.rows('X.size(0)')}, m = X.size(1);")
        if plan.has("fuse"):
            self._pass(code, plan, self.steps, "xr[j]")
            return
        for number, step in enumerate(self.steps):
            self._pass(code, plan, [step], "yr[j]" if number else "xr[j]")

    def _pass(self, code: Code, plan: Plan, steps: Sequence[str], start: str) -> None:
        with code.loop("i", "n"):
            code.add(*(f"const float* {name}r = {name} + i * m;" for name in ("x", *self.rows)))
            code.add("float* yr = y + i * m;", plan.prefetch("xr + m"))
            with code.loop("j", "m", pragma=plan.simd()):
                code.add(f"{plan.real} v = {start};", *(f"v = {step};" for step in steps), "yr[j] = v;")
