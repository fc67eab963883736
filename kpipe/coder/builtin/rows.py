"""Kernels that normalize each row by a statistic of it: softmax, layer norm, Euclidean norm."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, pointers, tensors

LANES = 16
COMMON = frozenset(
    {"fuse", "simd", "unroll", "fastmath", "half", "double", "skip", "cuda", "naive", "approx"}
)


def reduction(plan: Plan, op: str, start: str, into: str, value: str, *, real: str | None = None) -> str:
    """Reduce `value` (an expression over j) of a row into `into`; unrolled, into independent lanes first.

    `op` is '+' or 'max'.
    """
    kind = real or plan.real

    def add(target: str, at: str) -> str:
        v = value.replace("[j]", f"[{at}]")
        return f"{target} = std::max({target}, {v});\n" if op == "max" else f"{target} += {v};\n"

    if not plan.has("unroll"):
        loop = f"for (int64_t j = 0; j < m; j++) {add(into, 'j')}"
        return f"{kind} {into} = {start};\n" + plan.simd(f"{op} : {into}") + loop
    lanes = f"{into}_lane"
    join = f"std::max({into}, {lanes}[k])" if op == "max" else f"{into} + {lanes}[k]"
    return (
        f"{kind} {lanes}[{LANES}];\nfor (int k = 0; k < {LANES}; k++) {lanes}[k] = {start};\n"
        + block(
            f"for (int64_t j = 0; j < m; j += {LANES})",
            plan.simd(),
            f"for (int k = 0; k < {LANES}; k++) {add(f'{lanes}[k]', 'j + k')}",
        )
        + f"{kind} {into} = {start};\nfor (int k = 0; k < {LANES}; k++) {into} = {join};\n"
    )


def over_row(plan: Plan, statement: str) -> str:
    """A loop over the m elements of a row."""
    return plan.simd() + f"for (int64_t j = 0; j < m; j++) {statement}\n"


def row_kernel(
    plan: Plan, arguments: tuple[str, ...], inputs: tuple[str, ...], helpers: str, inner: str
) -> Kernel:
    """The frame that all row kernels share: `inputs` have a row per i, other arguments a value per column."""
    body = "auto Y = torch::empty_like(X);\nint64_t n = X.size(0), m = X.size(1);\n"
    body += pointers(*arguments) + "float* y = Y.data_ptr<float>();\n"
    rows = "".join(f"const float* {name}r = {name} + i * m;\n" for name in inputs)
    start = plan.row_start("xr", "m")
    body += block(
        f"for (int64_t i = 0; i < {plan.rows()}; i++)", rows, "float* yr = y + i * m;\n", start, inner
    )
    return Kernel(helpers, tensors(arguments), body + "return Y;\n")


@dataclass(frozen=True)
class Softmax:
    """exp(x - max) / sum, or its logarithm."""

    log: bool = False

    def applies(self) -> frozenset[str]:
        return COMMON | {"poly", "online"}

    def render(self, plan: Plan) -> Kernel:
        inner = self._online(plan) if plan.has("online") else self._passes(plan)
        return row_kernel(plan, ("x",), ("x",), plan.exp_helper(), inner)

    def _online(self, plan: Plan) -> str:
        """Maximum and sum in one pass: the sum is rescaled whenever the maximum moves."""
        moved = block("if (xr[j] > top)", f"sum *= {plan.exp('top - xr[j]')};\n", "top = xr[j];\n")
        loop = block("for (int64_t j = 0; j < m; j++)", moved, f"sum += {plan.exp('xr[j] - top')};\n")
        return f"float top = xr[0];\n{plan.real} sum = 0;\n{loop}{self._output(plan)}"

    def _passes(self, plan: Plan) -> str:
        top = reduction(plan, "max", "xr[0]", "top", "xr[j]", real="float")
        if not plan.has("fuse") or self.log:
            return top + reduction(plan, "+", "0", "sum", plan.exp("xr[j] - top")) + self._output(plan)
        store = over_row(plan, f"yr[j] = {plan.exp('xr[j] - top')};")
        total = reduction(plan, "+", "0", "sum", "yr[j]")
        return top + store + total + "float scale = 1.0f / (float)sum;\n" + over_row(plan, "yr[j] *= scale;")

    def _output(self, plan: Plan) -> str:
        if self.log:
            shift = "float shift = top + std::log((float)sum);\n"
            if plan.has("fuse"):
                return shift + over_row(plan, "yr[j] = xr[j] - shift;")
            return over_row(plan, "yr[j] = xr[j] - top;") + over_row(
                plan, "yr[j] = yr[j] - std::log((float)sum);"
            )
        return over_row(plan, f"yr[j] = {plan.exp('xr[j] - top')} / (float)sum;")


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * w + b, of x or of x + r."""

    residual: bool = False

    def applies(self) -> frozenset[str]:
        return COMMON | {"online"}

    def render(self, plan: Plan) -> Kernel:
        inputs = ("x", "r") if self.residual else ("x",)
        value = "(xr[j] + rr[j])" if self.residual else "xr[j]"
        before = ""
        if self.residual and not plan.has("fuse"):
            before, value = over_row(plan, "yr[j] = xr[j] + rr[j];"), "yr[j]"
        inner = before + self._statistics(plan, value) + self._output(plan, value)
        return row_kernel(plan, (*inputs, "w", "b"), inputs, plan.rsqrt_helper(), inner)

    def _statistics(self, plan: Plan, value: str) -> str:
        if plan.has("online"):
            sums = reduction(plan, "+", "0", "sum", value) + reduction(
                plan, "+", "0", "square", f"{value} * {value}"
            )
            return (
                sums
                + "float mean = (float)sum / m;\nfloat scale = rsqrt((float)square / m - mean * mean + 1e-5f);\n"
            )
        centred = f"({value} - mean) * ({value} - mean)"
        mean = reduction(plan, "+", "0", "sum", value) + "float mean = (float)sum / m;\n"
        return (
            mean
            + reduction(plan, "+", "0", "square", centred)
            + "float scale = rsqrt((float)square / m + 1e-5f);\n"
        )

    def _output(self, plan: Plan, value: str) -> str:
        if plan.has("fuse"):
            return over_row(plan, f"yr[j] = ({value} - mean) * scale * w[j] + b[j];")
        steps = (
            f"yr[j] = {value} - mean;",
            "yr[j] = yr[j] * scale;",
            "yr[j] = yr[j] * w[j];",
            "yr[j] = yr[j] + b[j];",
        )
        return "".join(over_row(plan, step) for step in steps)


@dataclass(frozen=True)
class UnitRows:
    """x / sqrt(sum of squares)."""

    def applies(self) -> frozenset[str]:
        return COMMON

    def render(self, plan: Plan) -> Kernel:
        if plan.has("fuse"):
            sums = reduction(plan, "+", "0", "square", "xr[j] * xr[j]")
        else:
            sums = over_row(plan, "yr[j] = xr[j] * xr[j];") + reduction(plan, "+", "0", "square", "yr[j]")
        scale = "float scale = rsqrt((float)square);\n"
        return row_kernel(
            plan, ("x",), ("x",), plan.rsqrt_helper(), sums + scale + over_row(plan, "yr[j] = xr[j] * scale;")
        )
