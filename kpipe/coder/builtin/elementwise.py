"""Kernels whose outputs depend on one element each: activations, chains, gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, pointers, tensors

Expression = Callable[[Plan], str]


@dataclass(frozen=True)
class Elementwise:
    """`steps` are expressions over `v` (the running value), `x[j]` and the other arguments of the row.

    Unfused, each step is a pass over memory; fused, one pass keeps `v` in a register. `columns` are arguments
    with one value per column, `rows` those of the shape of x.
    """

    steps: tuple[Expression, ...]
    columns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    transcendental: bool = False

    def applies(self) -> frozenset[str]:
        always = {"fuse", "simd", "fastmath", "half", "double", "skip", "cuda", "naive"}
        return frozenset(always | ({"poly", "approx"} if self.transcendental else {"prefetch", "wide"}))

    def render(self, plan: Plan) -> Kernel:
        names = ("x", *self.others, *self.columns)
        body = (
            "auto Y = torch::empty_like(X);\nint64_t n = X.size(0), m = X.size(1);\n"
            + pointers(*names)
            + "float* y = Y.data_ptr<float>();\n"
        )
        if plan.has("fuse"):
            body += self._pass(plan, self._fused(plan))
        else:
            for i, step in enumerate(self.steps):
                value = "xr[j]" if i == 0 else "yr[j]"
                body += self._pass(plan, f"{plan.real} v = {value};\nyr[j] = (float)({step(plan)});\n")
        return Kernel(plan.exp_helper() if self.transcendental else "", tensors(names), body + "return Y;\n")

    def _fused(self, plan: Plan) -> str:
        steps = "".join(f"v = {step(plan)};\n" for step in self.steps)
        return f"{plan.real} v = xr[j];\n{steps}yr[j] = (float)v;\n"

    def _pass(self, plan: Plan, statements: str) -> str:
        rows = "".join(f"const float* {name}r = {name} + i * m;\n" for name in ("x", *self.others))
        inner = plan.simd() + block("for (int64_t j = 0; j < m; j++)", statements)
        head = f"for (int64_t i = 0; i < {plan.rows()}; i++)"
        return block(head, rows, "float* yr = y + i * m;\n", plan.row_start("xr", "m"), inner)
