"""Kernels whose plain loop walks memory with a stride, or carries a dependence from element to element."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.text import Code

TILE = 64
SCAN_ROWS = 8


@dataclass(frozen=True)
class ChannelRms:
    """x[n, k, m] over its root mean square along k: the statistic runs across rows of m contiguous values."""

    tensors: tuple[str, ...] = ("x",)
    improvements: frozenset[str] = frozenset({"fuse", "simd", "unroll", "interchange", "tile", "wide"})

    def write(self, code: Code, plan: Plan) -> None:
        code.add("auto Y = torch::empty_like(X);", "float* y = Y.data_ptr<float>();")
        code.add(f"int64_t n = {plan.rows('X.size(0)')}, k = X.size(1), m = X.size(2);")
        with code.loop("i", "n"):
            code.add("const float* xb = x + i * k * m;", "float* yb = y + i * k * m;")
            if not plan.has("fuse"):
                with code.loop("e", "k * m", pragma=plan.simd()):
                    code.add("yb[e] = xb[e] * xb[e];")
            if plan.has("tile"):
                with code.loop("from", "m", step=str(TILE)):
                    code.add(f"float sum[{TILE}] = {{}};")
                    self._in_order(code, plan, "c * m + from + j", str(TILE))
            elif plan.has("interchange"):
                code.add("std::vector<float> sum(m);")
                self._in_order(code, plan, "c * m + j", "m")
            else:
                self._by_position(code, plan)

    def _square(self, plan: Plan, at: str) -> str:
        return f"xb[{at}] * xb[{at}]" if plan.has("fuse") else f"yb[{at}]"

    def _by_position(self, code: Code, plan: Plan) -> None:
        """Every access is m floats away from the one before."""
        with code.loop("j", "m"):
            if plan.has("unroll"):
                code.add("float part[4] = {};")
                with code.loop("c", "k", step="4"):
                    code.add(*(f"part[{u}] += {self._square(plan, f'(c + {u}) * m + j')};" for u in range(4)))
                code.add("float sum = part[0] + part[1] + part[2] + part[3];")
            else:
                code.add(f"{plan.real} sum = 0;")
                with code.loop("c", "k"):
                    code.add(f"sum += {self._square(plan, 'c * m + j')};")
            code.add("float scale = inverse_root(sum / k + 1e-5f);")
            with code.loop("c", "k"):
                code.add("yb[c * m + j] = xb[c * m + j] * scale;")

    def _in_order(self, code: Code, plan: Plan, at: str, width: str) -> None:
        """Channel by channel: the sums of `width` positions, then their scales, are kept side by side."""
        with code.loop("c", "k"), code.loop("j", width, pragma=plan.simd()):
            code.add(f"sum[j] += {self._square(plan, at)};")
        with code.loop("j", width, pragma=plan.simd()):
            code.add("sum[j] = inverse_root(sum[j] / k + 1e-5f);")
        with code.loop("c", "k"), code.loop("j", width, pragma=plan.simd()):
            code.add(f"yb[{at}] = xb[{at}] * sum[j];")


@dataclass(frozen=True)
class RowScan:
    """Cumulative sum along each row; `finish` turns the sum {v} at column {j} into the output."""

    finish: str = "{v}"
    tensors: tuple[str, ...] = ("x",)
    improvements: frozenset[str] = frozenset({"fuse", "unroll", "interchange", "wide", "prefetch"})

    def write(self, code: Code, plan: Plan) -> None:
        code.add("auto Y = torch::empty_like(X);", "float* y = Y.data_ptr<float>();")
        code.add(f"int64_t n = {plan.rows('X.size(0)')}, m = X.size(1);")
        source = "x" if plan.has("fuse") else "y"
        if not plan.has("fuse"):
            with code.loop("e", "n * m"):
                code.add("y[e] = x[e];")
        if plan.has("interchange"):
            self._side_by_side(code, plan, source)
        else:
            with code.loop("i", "n"):
                code.add(f"const float* from = {source} + i * m;", "float* to = y + i * m;")
                code.add(plan.prefetch("from + m"))
                self._row(code, plan)
        if self.finish != "{v}" and not plan.has("fuse"):
            with code.loop("i", "n"), code.loop("j", "m"):
                code.add(f"y[i * m + j] = {self.finish.format(v='y[i * m + j]', j='j')};")

    def _finished(self, plan: Plan, value: str, j: str) -> str:
        return self.finish.format(v=value, j=j) if plan.has("fuse") else value

    def _row(self, code: Code, plan: Plan) -> None:
        """One sum after the other; unrolled, four at a time with the sums of pairs off the chain."""
        code.add(f"{plan.real} sum = 0;")
        if not plan.has("unroll"):
            with code.loop("j", "m"):
                code.add("sum += from[j];", f"to[j] = {self._finished(plan, 'sum', 'j')};")
            return
        with code.loop("j", "m", step="4"):
            code.add("float a = from[j], b = from[j + 1], c = from[j + 2], d = from[j + 3];")
            code.add("float ab = a + b, abc = ab + c, abcd = ab + (c + d);")
            for u, part in enumerate(("a", "ab", "abc", "abcd")):
                at = f"j + {u}" if u else "j"
                code.add(f"to[{at}] = {self._finished(plan, f'(sum + {part})', f'({at})')};")
            code.add("sum += abcd;")

    def _side_by_side(self, code: Code, plan: Plan, source: str) -> None:
        """Several rows advance together, each with a chain of its own."""
        rows = SCAN_ROWS * 2 if plan.has("unroll") else SCAN_ROWS
        with code.loop("i", "n", step=str(rows)):
            code.add(f"const float* from = {source} + i * m;", "float* to = y + i * m;")
            code.add(plan.prefetch(f"from + {rows} * m"), f"float sum[{rows}] = {{}};")
            with code.loop("j", "m"), code.loop("u", str(rows), pragma=f"#pragma GCC unroll {rows}"):
                code.add("sum[u] += from[u * m + j];")
                code.add(f"to[u * m + j] = {self._finished(plan, 'sum[u]', 'j')};")
