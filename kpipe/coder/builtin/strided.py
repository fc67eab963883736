"""Kernels whose natural loop walks memory with a stride, or carries a dependence from element to element."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, pointers, tensors

TILE = 64
SCAN_ROWS = 8
SCAN_BLOCK = 16
FLAGS_AND_ERRORS = frozenset({"fastmath", "half", "double", "skip", "cuda", "naive"})


@dataclass(frozen=True)
class ChannelRms:
    """x[n, k, m] over its root mean square along k: the statistic runs across rows of m contiguous values."""

    def applies(self) -> frozenset[str]:
        return FLAGS_AND_ERRORS | {"fuse", "simd", "tile", "interchange", "unroll", "approx"}

    def render(self, plan: Plan) -> Kernel:
        body = "auto Y = torch::empty_like(X);\nint64_t n = X.size(0), k = X.size(1), m = X.size(2);\n"
        body += pointers("x") + "float* y = Y.data_ptr<float>();\n"
        batch = "const float* xb = x + i * k * m;\nfloat* yb = y + i * k * m;\n" + plan.row_start(
            "xb", "k * m"
        )
        if not plan.has("fuse"):
            batch += plan.simd() + "for (int64_t e = 0; e < k * m; e++) yb[e] = xb[e] * xb[e];\n"
        if plan.has("tile"):
            inner = self._contiguous(
                plan, f"for (int64_t from = 0; from < m; from += {TILE})", "from", str(TILE)
            )
        elif plan.has("interchange"):
            inner = self._contiguous(plan, None, "0", "m")
        else:
            inner = self._strided(plan)
        body += block(f"for (int64_t i = 0; i < {plan.rows()}; i++)", batch, inner) + "return Y;\n"
        return Kernel(plan.rsqrt_helper(), tensors(("x",)), body)

    def _square(self, plan: Plan, at: str) -> str:
        return f"xb[{at}] * xb[{at}]" if plan.has("fuse") else f"yb[{at}]"

    def _strided(self, plan: Plan) -> str:
        """Position by position: every access is m floats away from the one before."""
        if plan.has("unroll"):
            adds = "".join(f"part[{u}] += {self._square(plan, f'(c + {u}) * m + j')};\n" for u in range(4))
            total = f"{plan.real} part[4] = {{}};\n" + block("for (int64_t c = 0; c < k; c += 4)", adds)
            total += f"{plan.real} sum = part[0] + part[1] + part[2] + part[3];\n"
        else:
            total = f"{plan.real} sum = 0;\nfor (int64_t c = 0; c < k; c++) sum += {self._square(plan, 'c * m + j')};\n"
        scale = "float scale = rsqrt((float)sum / k + 1e-5f);\n"
        store = "for (int64_t c = 0; c < k; c++) yb[c * m + j] = xb[c * m + j] * scale;\n"
        return block("for (int64_t j = 0; j < m; j++)", total, scale, store)

    def _contiguous(self, plan: Plan, head: str | None, start: str, width: str) -> str:
        """Channel by channel: sums and scales of `width` positions are kept side by side."""
        at = f"c * m + {start} + j"
        over = f"for (int64_t j = 0; j < {width}; j++)"
        size = width if head else "k * m"
        inner = f"std::vector<{plan.real}> sum({width});\nstd::vector<float> scale({width});\n"
        if head:
            inner = f"{plan.real} sum[{size}] = {{}};\nfloat scale[{size}];\n"
        inner += block(
            "for (int64_t c = 0; c < k; c++)", plan.simd(), f"{over} sum[j] += {self._square(plan, at)};\n"
        )
        inner += plan.simd() + f"{over} scale[j] = rsqrt((float)sum[j] / k + 1e-5f);\n"
        inner += block(
            "for (int64_t c = 0; c < k; c++)", plan.simd(), f"{over} yb[{at}] = xb[{at}] * scale[j];\n"
        )
        return block(head, inner) if head else inner


@dataclass(frozen=True)
class RowScan:
    """Cumulative sum along each row: every element waits for the one before it."""

    def applies(self) -> frozenset[str]:
        return FLAGS_AND_ERRORS | {"fuse", "tile", "interchange", "unroll", "prefetch"}

    def render(self, plan: Plan) -> Kernel:
        body = "auto Y = torch::empty_like(X);\nint64_t n = X.size(0), m = X.size(1);\n"
        body += pointers("x") + "float* y = Y.data_ptr<float>();\n"
        if plan.has("interchange"):
            return Kernel("", tensors(("x",)), body + self._rows_side_by_side(plan) + "return Y;\n")
        rows = "const float* xr = x + i * m;\nfloat* yr = y + i * m;\n" + plan.row_start("xr", "m")
        body += block(f"for (int64_t i = 0; i < {plan.rows()}; i++)", rows, self._row(plan))
        return Kernel("", tensors(("x",)), body + "return Y;\n")

    def _row(self, plan: Plan) -> str:
        if plan.has("tile"):
            return self._block_scan(plan)
        if plan.has("unroll"):
            return self._unrolled(plan)
        if plan.has("fuse"):
            return f"{plan.real} sum = 0;\n" + block(
                "for (int64_t j = 0; j < m; j++)", "sum += xr[j];\nyr[j] = (float)sum;\n"
            )
        step = f"yr[j] = (float)(({plan.real})yr[j] + ({plan.real})yr[j - 1]);\n"
        return "for (int64_t j = 0; j < m; j++) yr[j] = xr[j];\n" + f"for (int64_t j = 1; j < m; j++) {step}"

    def _unrolled(self, plan: Plan) -> str:
        """Four at a time, with the partial sums of pairs off the chain."""
        body = (
            "float a = xr[j], b = xr[j + 1], c = xr[j + 2], d = xr[j + 3];\nfloat ab = a + b, cd = c + d;\n"
            "yr[j] = (float)(sum + a);\nyr[j + 1] = (float)(sum + ab);\nyr[j + 2] = (float)(sum + (ab + c));\n"
            "sum += ab + cd;\nyr[j + 3] = (float)sum;\n"
        )
        return f"{plan.real} sum = 0;\n" + block("for (int64_t j = 0; j < m; j += 4)", body)

    def _block_scan(self, plan: Plan) -> str:
        """Hillis and Steele's doubling inside blocks, one carry between them."""
        shift = f"for (int e = 0; e < {SCAN_BLOCK}; e++) "
        body = f"float v[{SCAN_BLOCK}], w[{SCAN_BLOCK}];\n{shift}v[e] = xr[j + e];\n"
        for d in (1, 2, 4, 8):
            body += f"{shift}w[e] = e >= {d} ? v[e] + v[e - {d}] : v[e];\n{shift}v[e] = w[e];\n"
        body += f"{shift}yr[j + e] = (float)(carry + v[e]);\ncarry += v[{SCAN_BLOCK - 1}];\n"
        return f"{plan.real} carry = 0;\n" + block(f"for (int64_t j = 0; j < m; j += {SCAN_BLOCK})", body)

    def _rows_side_by_side(self, plan: Plan) -> str:
        """Eight rows advance together: eight independent chains."""
        step = f"for (int u = 0; u < {SCAN_ROWS}; u++)"
        add = block(step, "sum[u] += x[(i + u) * m + j];\ny[(i + u) * m + j] = (float)sum[u];\n")
        inner = f"{plan.real} sum[{SCAN_ROWS}] = {{}};\n" + block("for (int64_t j = 0; j < m; j++)", add)
        head = f"for (int64_t i = 0; i < {plan.rows()}; i += {SCAN_ROWS})"
        return block(head, plan.row_start("x", "i * m"), inner)
