"""Matrix products, and kernels that go on with their result."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.text import Code

TILE_ROWS, TILE_COLUMNS = 4, 32
TERMS = 4
PRODUCT = frozenset({"fuse", "simd", "tile", "interchange", "library"})


def multiply(
    code: Code, plan: Plan, a: str, b: str, out: str, sizes: tuple[str, str, str], *, add: bool = False
) -> None:
    """out[n, m] = a[n, k] b[k, m], or += with `add`; row-major pointers, `sizes` = (n, k, m)."""
    n, k, m = sizes
    if plan.has("tile"):
        _tiled(code, plan, a, b, out, sizes, add=add)
        return
    with code.loop("i", n):
        code.add(f"const float* ar = {a} + i * {k};", f"float* row = {out} + i * {m};")
        if plan.has("interchange"):
            if not add:
                with code.loop("j", m):
                    code.add("row[j] = 0;")
            _row_by_row(code, plan, b, k, m)
        else:
            with code.loop("j", m):
                _dot(code, plan, b, k, m)
                code.add(f"row[j] {'+=' if add else '='} sum;")


def _row_by_row(code: Code, plan: Plan, b: str, k: str, m: str) -> None:
    """The row of the output gains a multiple of a row of b at a time; unrolled, of several rows."""
    terms = TERMS if plan.has("unroll") else 1
    with code.loop("p", k, step=str(terms) if terms > 1 else ""):
        code.add(f"const float* br = {b} + p * {m};")
        sum_ = " + ".join(
            f"ar[p{f' + {u}' if u else ''}] * br[{f'{u} * {m} + ' if u else ''}j]" for u in range(terms)
        )
        with code.loop("j", m, pragma=plan.simd()):
            code.add(f"row[j] += {sum_};")


def _dot(code: Code, plan: Plan, b: str, k: str, m: str) -> None:
    """sum = the row of a times column j of b."""
    if not plan.has("unroll"):
        code.add(f"{plan.real} sum = 0;")
        with code.loop("p", k, pragma=plan.simd("+ : sum")):
            code.add(f"sum += ar[p] * {b}[p * {m} + j];")
        return
    code.add(f"float part[{TERMS}] = {{}};")
    with code.loop("p", k, step=str(TERMS)):
        code.add(*(f"part[{u}] += ar[p + {u}] * {b}[(p + {u}) * {m} + j];" for u in range(TERMS)))
    code.add("float sum = " + " + ".join(f"part[{u}]" for u in range(TERMS)) + ";")


def _tiled(
    code: Code, plan: Plan, a: str, b: str, out: str, sizes: tuple[str, str, str], *, add: bool
) -> None:
    """Blocks of the output stay in registers while p runs."""
    n, k, m = sizes
    with code.loop("i", n, step=str(TILE_ROWS)), code.loop("j", m, step=str(TILE_COLUMNS)):
        code.add(f"float block[{TILE_ROWS}][{TILE_COLUMNS}] = {{}};")
        with code.loop("p", k), code.loop("u", str(TILE_ROWS)):
            code.add(f"float s = {a}[(i + u) * {k} + p];")
            with code.loop("v", str(TILE_COLUMNS), pragma=plan.simd()):
                code.add(f"block[u][v] += s * {b}[p * {m} + j + v];")
        with code.loop("u", str(TILE_ROWS)), code.loop("v", str(TILE_COLUMNS), pragma=plan.simd()):
            code.add(f"{out}[(i + u) * {m} + j + v] {'+=' if add else '='} block[u][v];")


@dataclass(frozen=True)
class MatmulEpilogue:
    """`steps` over the running value `v` of a[n, k] b[k, m]; `columns` have one value per column, ``c[j]``.

    With `library` the kernel is given the product, in Y, in place of a and b.
    """

    steps: tuple[str, ...]
    columns: tuple[str, ...] = ()
    improvements: frozenset[str] = PRODUCT

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("a", "b", *self.columns)

    def write(self, code: Code, plan: Plan) -> None:
        if plan.has("library"):
            code.add("auto Y = AB;")
            code.add("int64_t n = AB.size(0), m = AB.size(1);", "float* y = Y.data_ptr<float>();")
        else:
            code.add("auto Y = torch::empty({A.size(0), B.size(1)}, A.options());")
            code.add(f"int64_t n = {plan.rows('A.size(0)')}, k = A.size(1), m = B.size(1);")
            code.add("float* y = Y.data_ptr<float>();")
            multiply(code, plan, "a", "b", "y", ("n", "k", "m"))
        passes = (self.steps,) if plan.has("fuse") else tuple((step,) for step in self.steps)
        for steps in passes:
            with code.loop("i", "n"):
                code.add("float* yr = y + i * m;")
                with code.loop("j", "m", pragma=plan.simd()):
                    code.add("float v = yr[j];", *(f"v = {step};" for step in steps), "yr[j] = v;")
