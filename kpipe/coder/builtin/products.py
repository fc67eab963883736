"""Kernels around matrix products: one with an epilogue, and small networks of them."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, pointers

STRATEGIES = frozenset(
    {
        "fuse",
        "simd",
        "tile",
        "interchange",
        "unroll",
        "library",
        "fastmath",
        "half",
        "double",
        "skip",
        "cuda",
        "naive",
    }
)
ROWS, COLUMNS = 4, 32


def product(plan: Plan, a: str, b: str, out: str, n: str, k: str, m: str) -> str:
    """out[n, m] = a[n, k] * b[k, m] on raw row-major pointers."""
    start = plan.row_start(f"{a} + i * {k}", k)
    if plan.has("tile"):
        return _tiled(plan, a, b, out, n, k, m)
    if plan.has("interchange"):
        inner = block(
            f"for (int64_t p = 0; p < {k}; p++)",
            f"float s = {a}[i * {k} + p];\n",
            plan.simd(),
            f"for (int64_t j = 0; j < {m}; j++) row[j] += s * {b}[p * {m} + j];\n",
        )
        body = f"float* row = {out} + i * {m};\nfor (int64_t j = 0; j < {m}; j++) row[j] = 0;\n" + inner
    else:
        body = block(
            f"for (int64_t j = 0; j < {m}; j++)",
            _dot(plan, a, b, k, m),
            f"{out}[i * {m} + j] = (float)sum;\n",
        )
    return block(f"for (int64_t i = 0; i < {plan.rows(n)}; i++)", start, body)


def _dot(plan: Plan, a: str, b: str, k: str, m: str) -> str:
    if not plan.has("unroll"):
        loop = f"for (int64_t p = 0; p < {k}; p++) sum += {a}[i * {k} + p] * {b}[p * {m} + j];\n"
        return f"{plan.real} sum = 0;\n" + plan.simd("+ : sum") + loop
    adds = f"for (int u = 0; u < 4; u++) part[u] += {a}[i * {k} + p + u] * {b}[(p + u) * {m} + j];\n"
    loop = block(f"for (int64_t p = 0; p < {k}; p += 4)", adds)
    return f"{plan.real} part[4] = {{}};\n{loop}{plan.real} sum = part[0] + part[1] + part[2] + part[3];\n"


def _tiled(plan: Plan, a: str, b: str, out: str, n: str, k: str, m: str) -> str:
    """Blocks of 4 x 32 outputs stay in registers while p runs."""
    lanes = f"for (int v = 0; v < {COLUMNS}; v++)"
    rows = f"for (int u = 0; u < {ROWS}; u++)"
    multiply = block(
        f"for (int64_t p = 0; p < {k}; p++)",
        block(
            rows,
            f"float s = {a}[(i + u) * {k} + p];\n",
            plan.simd(),
            f"{lanes} acc[u][v] += s * {b}[p * {m} + j + v];\n",
        ),
    )
    store = f"{rows} {lanes} {out}[(i + u) * {m} + j + v] = (float)acc[u][v];\n"
    columns = block(
        f"for (int64_t j = 0; j < {m}; j += {COLUMNS})",
        f"{plan.real} acc[{ROWS}][{COLUMNS}] = {{}};\n",
        multiply,
        store,
    )
    start = plan.row_start(f"{a} + i * {k}", f"{ROWS} * {k}")
    return block(f"for (int64_t i = 0; i < {plan.rows(n)}; i += {ROWS})", start, columns)


def epilogue(plan: Plan, out: str, count: str, m: str, steps: tuple[str, ...]) -> str:
    """Element-wise `steps` over `v` and the column j, in one pass when fused, else in a pass each."""
    passes = (steps,) if plan.has("fuse") else tuple((s,) for s in steps)
    text = ""
    for group in passes:
        inner = "".join(f"v = {s};\n" for s in group)
        loop = block(f"for (int64_t j = 0; j < {m}; j++)", f"float v = row[j];\n{inner}row[j] = v;\n")
        text += block(
            f"for (int64_t i = 0; i < {count}; i++)", f"float* row = {out} + i * {m};\n", plan.simd(), loop
        )
    return text


@dataclass(frozen=True)
class MatmulEpilogue:
    """epilogue(a @ b). With `library` the product is PyTorch's and the kernel is the epilogue."""

    steps: tuple[str, ...]
    columns: tuple[str, ...] = ()
    tanh: bool = False

    def applies(self) -> frozenset[str]:
        return STRATEGIES | ({"poly", "approx"} if self.tanh else set())

    def render(self, plan: Plan) -> Kernel:
        steps = tuple(
            s.replace("TANH(u)", plan.tanh("0.7978845608f * (v + 0.044715f * v * v * v)")) for s in self.steps
        )
        vectors = pointers(*self.columns)
        if plan.has("library"):
            signature = ", ".join(["torch::Tensor Y", *(f"torch::Tensor {c.upper()}" for c in self.columns)])
            body = "int64_t n = Y.size(0), m = Y.size(1);\n" + vectors + "float* y = Y.data_ptr<float>();\n"
            body += plan.row_start("y", "m") + epilogue(plan, "y", plan.rows(), "m", steps) + "return Y;\n"
            return Kernel(plan.exp_helper() if self.tanh else "", signature, body)
        signature = ", ".join(f"torch::Tensor {c.upper()}" for c in ("a", "b", *self.columns))
        body = "int64_t n = A.size(0), k = A.size(1), m = B.size(1);\nauto Y = torch::empty({n, m}, A.options());\n"
        body += pointers("a", "b") + vectors + "float* y = Y.data_ptr<float>();\n"
        body += (
            product(plan, "a", "b", "y", "n", "k", "m") + epilogue(plan, "y", "n", "m", steps) + "return Y;\n"
        )
        return Kernel(plan.exp_helper() if self.tanh else "", signature, body)
