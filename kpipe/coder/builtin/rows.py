"""Kernels that normalize each row by a statistic of it: softmax, layer norm, Euclidean norm."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.plan import LANES, Plan
from kpipe.coder.builtin.text import Code

NORM = frozenset({"fuse", "simd", "unroll", "online", "prefetch"})
SOFTMAX = frozenset({"fuse", "simd", "unroll", "online", "poly"})
UNIT = frozenset({"fuse", "simd", "unroll", "fastmath", "prefetch"})


def over_row(code: Code, plan: Plan, *statements: str) -> None:
    """A loop over the columns of a row."""
    with code.loop("j", "m", pragma=plan.simd()):
        code.add(*statements)


def add_up(code: Code, plan: Plan, into: str, value: str) -> None:
    """Sum `value`, an expression over j, along the row; unrolled, into independent lanes first."""
    if not plan.has("unroll"):
        code.add(f"{plan.real} {into} = 0;")
        with code.loop("j", "m", pragma=plan.simd(f"+ : {into}")):
            code.add(f"{into} += {value};")
        return
    code.add(f"float {into}_part[{LANES}] = {{}};")
    with code.loop("j", "m", step=str(LANES)), code.loop("k", str(LANES), pragma=plan.simd()):
        code.add(f"{into}_part[k] += {value.replace('[j]', '[j + k]')};")
    code.add(f"float {into} = 0;", f"for (int k = 0; k < {LANES}; k++) {into} += {into}_part[k];")


def highest(code: Code, plan: Plan) -> None:
    """The largest value of the row, as `top`."""
    if not plan.has("unroll"):
        code.add("float top = xr[0];")
        with code.loop("j", "m", pragma=plan.simd("max : top")):
            code.add("top = xr[j] > top ? xr[j] : top;")
        return
    code.add(f"float tops[{LANES}];", f"for (int k = 0; k < {LANES}; k++) tops[k] = xr[k];")
    with code.loop("j", "m", step=str(LANES)), code.loop("k", str(LANES), pragma=plan.simd()):
        code.add("tops[k] = xr[j + k] > tops[k] ? xr[j + k] : tops[k];")
    code.add(
        "float top = tops[0];", f"for (int k = 1; k < {LANES}; k++) top = tops[k] > top ? tops[k] : top;"
    )


def start(code: Code, plan: Plan) -> None:
    """Output and sizes of a kernel over the rows of x[n, m]."""
    code.add("auto Y = torch::empty_like(X);", "float* y = Y.data_ptr<float>();")
    code.add(f"int64_t n = {plan.rows('X.size(0)')}, m = X.size(1);")


def pointers(code: Code, plan: Plan, *names: str) -> None:
    """Where row i of the inputs and of the output begins."""
    code.add(*(f"const float* {name}r = {name} + i * m;" for name in names), "float* yr = y + i * m;")
    code.add(plan.prefetch(f"{names[0]}r + m"))


@dataclass(frozen=True)
class Softmax:
    """exp(x - max) / sum along each row, or the logarithm of that. With `bias`, of x + bias."""

    log: bool = False
    tensors: tuple[str, ...] = ("x",)
    improvements: frozenset[str] = SOFTMAX

    def write(self, code: Code, plan: Plan) -> None:
        start(code, plan)
        with code.loop("i", "n"):
            pointers(code, plan, "x")
            if plan.has("online"):
                self._online(code)
            else:
                highest(code, plan)
                self._sum(code, plan)
            self._output(code, plan)

    def _online(self, code: Code) -> None:
        """Maximum and sum in one pass: the sum is rescaled whenever the maximum moves."""
        code.add("float top = xr[0], sum = 0;")
        with code.loop("j", "m"):
            with code.block("if (xr[j] > top)"):
                code.add("sum *= exponential(top - xr[j]);", "top = xr[j];")
            code.add("sum += exponential(xr[j] - top);")

    def _keeps(self, plan: Plan) -> bool:
        """Whether the exponentials wait in the output for their sum, rather than being computed twice."""
        return plan.has("fuse") and not self.log and not plan.has("online")

    def _sum(self, code: Code, plan: Plan) -> None:
        if self._keeps(plan):
            over_row(code, plan, "yr[j] = exponential(xr[j] - top);")
            add_up(code, plan, "sum", "yr[j]")
        else:
            add_up(code, plan, "sum", "exponential(xr[j] - top)")

    def _output(self, code: Code, plan: Plan) -> None:
        if self.log:
            code.add("float shift = std::log((float)sum);")
            if plan.has("fuse"):
                over_row(code, plan, "yr[j] = xr[j] - top - shift;")
            else:
                over_row(code, plan, "yr[j] = xr[j] - top;")
                over_row(code, plan, "yr[j] = yr[j] - shift;")
            return
        code.add("float scale = 1.0f / sum;")
        if self._keeps(plan):
            over_row(code, plan, "yr[j] = yr[j] * scale;")
        elif plan.has("fuse"):
            over_row(code, plan, "yr[j] = exponential(xr[j] - top) * scale;")
        else:
            over_row(code, plan, "yr[j] = exponential(xr[j] - top);")
            over_row(code, plan, "yr[j] = yr[j] * scale;")


@dataclass(frozen=True)
class ResidualNorm:
    """Layer normalization of x + r along each row, with weight w and bias b."""

    tensors: tuple[str, ...] = ("x", "r", "w", "b")
    improvements: frozenset[str] = NORM

    def write(self, code: Code, plan: Plan) -> None:
        start(code, plan)
        with code.loop("i", "n"):
            pointers(code, plan, "x", "r")
            over_row(code, plan, "yr[j] = xr[j] + rr[j];")
            add_up(code, plan, "sum", "yr[j]")
            if plan.has("online"):
                add_up(code, plan, "squares", "yr[j] * yr[j]")
                code.add("float mean = sum / m;")
                code.add("float scale = inverse_root(squares / m - mean * mean + 1e-5f);")
            else:
                code.add("float mean = sum / m;")
                add_up(code, plan, "squares", "(yr[j] - mean) * (yr[j] - mean)")
                code.add("float scale = inverse_root(squares / m + 1e-5f);")
            self._output(code, plan)

    def _output(self, code: Code, plan: Plan) -> None:
        if plan.has("fuse"):
            over_row(code, plan, "yr[j] = (yr[j] - mean) * scale * w[j] + b[j];")
            return
        for step in ("yr[j] - mean", "yr[j] * scale", "yr[j] * w[j]", "yr[j] + b[j]"):
            over_row(code, plan, f"yr[j] = {step};")


@dataclass(frozen=True)
class UnitRows:
    """x / sqrt(sum of squares) along each row."""

    tensors: tuple[str, ...] = ("x",)
    improvements: frozenset[str] = UNIT

    def write(self, code: Code, plan: Plan) -> None:
        start(code, plan)
        with code.loop("i", "n"):
            pointers(code, plan, "x")
            if plan.has("fuse"):
                add_up(code, plan, "squares", "xr[j] * xr[j]")
            else:
                over_row(code, plan, "yr[j] = xr[j] * xr[j];")
                add_up(code, plan, "squares", "yr[j]")
            code.add("float scale = inverse_root(squares);")
            over_row(code, plan, "yr[j] = xr[j] * scale;")
