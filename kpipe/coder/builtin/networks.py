"""Small feed-forward networks: linear layers (weights as nn.Linear keeps them) with something between them."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, tensors

LANES = 16
STRATEGIES = frozenset(
    {
        "fuse",
        "simd",
        "tile",
        "unroll",
        "fastmath",
        "half",
        "double",
        "skip",
        "cuda",
        "naive",
    }
)


def linear(plan: Plan, x: str, layer: str, out: str, k: str, m: str, finish: str = "v") -> str:
    """out[n, m] = finish(x[n, k] @ weight[m, k]^T + bias): dot products of contiguous rows."""
    outputs = f"for (int64_t j = 0; j < {m}; j++)"
    start = f"const float* xr = {x} + i * {k};\nfloat* yr = {out} + i * {m};\n" + plan.row_start("xr", k)
    value = f"float v = (float)sum + {layer}_bias[j];\n" if plan.has("fuse") else "float v = (float)sum;\n"
    store = f"yr[j] = {finish if plan.has('fuse') else 'v'};\n"
    dot = f"const float* wr = {layer} + j * {k};\n" + _dot(plan, k)
    body = _four_rows(plan, layer, k, m, finish, x, out) if plan.has("tile") else ""
    if not body:
        body = block(f"for (int64_t i = 0; i < {plan.rows()}; i++)", start, block(outputs, dot, value, store))
    if plan.has("fuse"):
        return body
    rest = f"float v = yr[j] + {layer}_bias[j];\nyr[j] = {finish};\n"
    again = f"float* yr = {out} + i * {m};\n"
    return body + block("for (int64_t i = 0; i < n; i++)", again, plan.simd(), block(outputs, rest))


def _dot(plan: Plan, k: str) -> str:
    if not plan.has("unroll"):
        loop = f"for (int64_t p = 0; p < {k}; p++) sum += xr[p] * wr[p];\n"
        return f"{plan.real} sum = 0;\n" + plan.simd("+ : sum") + loop
    adds = f"for (int u = 0; u < {LANES}; u++) part[u] += xr[p + u] * wr[p + u];\n"
    total = f"{plan.real} sum = 0;\nfor (int u = 0; u < {LANES}; u++) sum += part[u];\n"
    return (
        f"{plan.real} part[{LANES}] = {{}};\n"
        + block(f"for (int64_t p = 0; p < {k}; p += {LANES})", plan.simd(), adds)
        + total
    )


def _four_rows(plan: Plan, layer: str, k: str, m: str, finish: str, x: str, out: str) -> str:
    """Four rows of x share every load of a weight."""
    sums = f"{plan.real} part[4][{LANES}] = {{}};\n"
    lanes = f"for (int u = 0; u < {LANES}; u++) part[r][u] += {x}[(i + r) * {k} + p + u] * wr[p + u];\n"
    multiply = block(
        f"for (int64_t p = 0; p < {k}; p += {LANES})",
        block("for (int r = 0; r < 4; r++)", plan.simd(), lanes),
    )
    bias = f" + {layer}_bias[j]" if plan.has("fuse") else ""
    store = block(
        "for (int r = 0; r < 4; r++)",
        f"{plan.real} sum = 0;\nfor (int u = 0; u < {LANES}; u++) sum += part[r][u];\n",
        f"float v = (float)sum{bias};\n{out}[(i + r) * {m} + j] = {finish if plan.has('fuse') else 'v'};\n",
    )
    outputs = block(
        f"for (int64_t j = 0; j < {m}; j++)", f"const float* wr = {layer} + j * {k};\n", sums, multiply, store
    )
    start = plan.row_start(f"{x} + i * {k}", f"4 * {k}")
    return block(f"for (int64_t i = 0; i < {plan.rows()}; i += 4)", start, outputs)


@dataclass(frozen=True)
class FeedForward:
    """down(relu(up(x))), or with a gate: down(relu(gate(x)) * up(x))."""

    gated: bool = False

    def applies(self) -> frozenset[str]:
        return STRATEGIES

    def render(self, plan: Plan) -> Kernel:
        layers = ("gate", "up", "down") if self.gated else ("up", "down")
        names = ["x", *(f"{layer}{part}" for layer in layers for part in ("", "_bias"))]
        body = "int64_t n = X.size(0), d = X.size(1), h = UP.size(0);\n"
        body += "auto H = torch::empty({n, h}, X.options());\nauto Y = torch::empty({n, d}, X.options());\n"
        body += "".join(f"const float* {name} = {name.upper()}.data_ptr<float>();\n" for name in names)
        body += "float* hidden = H.data_ptr<float>();\nfloat* y = Y.data_ptr<float>();\n"
        relu = "v > 0.0f ? v : 0.0f"
        if self.gated:
            body += "auto G = torch::empty({n, h}, X.options());\nfloat* opened = G.data_ptr<float>();\n"
            body += linear(plan, "x", "gate", "opened", "d", "h", relu) + linear(
                plan, "x", "up", "hidden", "d", "h"
            )
            body += plan.simd() + "for (int64_t e = 0; e < n * h; e++) hidden[e] *= opened[e];\n"
        else:
            body += linear(plan, "x", "up", "hidden", "d", "h", relu)
        body += linear(plan, "hidden", "down", "y", "h", "d")
        return Kernel("", tensors(names), body + "return Y;\n")
