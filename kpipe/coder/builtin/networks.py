"""Small networks: two layers, and recurrent ones."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.products import multiply
from kpipe.coder.builtin.text import Code


@dataclass(frozen=True)
class FeedForward:
    """relu(x[n, d] w[d, q] + b) v[q, d]."""

    tensors: tuple[str, ...] = ("x", "w", "b", "v")
    improvements: frozenset[str] = frozenset({"fuse", "simd", "unroll", "interchange", "fastmath"})

    def write(self, code: Code, plan: Plan) -> None:
        code.add(f"int64_t n = {plan.rows('X.size(0)')}, d = X.size(1), q = W.size(1);")
        code.add("auto Y = torch::empty_like(X);", "float* y = Y.data_ptr<float>();")
        code.add("auto H = torch::empty({n, q}, X.options());", "float* h = H.data_ptr<float>();")
        multiply(code, plan, "x", "w", "h", ("n", "d", "q"))
        steps = ("v = v + b[j];", "v = v > 0.0f ? v : 0.0f;")
        for together in (steps,) if plan.has("fuse") else tuple((step,) for step in steps):
            with code.loop("i", "n"), code.loop("j", "q", pragma=plan.simd()):
                code.add("float v = h[i * q + j];", *together, "h[i * q + j] = v;")
        multiply(code, plan, "h", "v", "y", ("n", "q", "d"))


@dataclass(frozen=True)
class Recurrent:
    """h = tanh(x[s] w + h u) over the steps s of x[t, n, d]; Y is the last h[n, q].

    With `gated`: h = h + z * (c - h), where c is that tanh and z the sigmoid of another such pair of products.
    """

    gated: bool = False
    improvements: frozenset[str] = frozenset({"fuse", "simd", "unroll", "interchange", "poly"})

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("x", "w", "u", "wz", "uz") if self.gated else ("x", "w", "u")

    def write(self, code: Code, plan: Plan) -> None:
        code.add(f"int64_t t = {plan.rows('X.size(0)')}, n = X.size(1), d = X.size(2), q = U.size(0);")
        code.add("auto Y = torch::zeros({n, q}, X.options());", "float* y = Y.data_ptr<float>();")
        for name in ("c", "z") if self.gated else ("c",):
            self._buffer(code, plan, name)
        with code.loop("s", "t"):
            code.add("const float* xs = x + s * n * d;")
            self._sum_of_products(code, plan, "c", "w", "u")
            if self.gated:
                self._sum_of_products(code, plan, "z", "wz", "uz")
            self._update(code, plan)

    def _buffer(self, code: Code, plan: Plan, name: str) -> None:
        for each in (name,) if plan.has("fuse") else (name, f"{name}_more"):
            code.add(f"auto {each.upper()} = torch::empty({{n, q}}, X.options());")
            code.add(f"float* {each} = {each.upper()}.data_ptr<float>();")

    def _sum_of_products(self, code: Code, plan: Plan, out: str, w: str, u: str) -> None:
        multiply(code, plan, "xs", w, out, ("n", "d", "q"))
        if plan.has("fuse"):
            multiply(code, plan, "y", u, out, ("n", "q", "q"), add=True)
            return
        multiply(code, plan, "y", u, f"{out}_more", ("n", "q", "q"))
        self._each(code, plan, f"{out}[e] = {out}[e] + {out}_more[e];")

    def _update(self, code: Code, plan: Plan) -> None:
        steps = ["c[e] = hyperbolic_tangent(c[e]);"]
        if self.gated:
            steps += ["z[e] = sigmoid(z[e]);", "c[e] = z[e] * (c[e] - y[e]);", "y[e] = y[e] + c[e];"]
        else:
            steps.append("y[e] = c[e];")
        if plan.has("fuse"):
            self._each(code, plan, *steps)
        else:
            for step in steps:
                self._each(code, plan, step)

    def _each(self, code: Code, plan: Plan, *statements: str) -> None:
        with code.loop("e", "n * q", pragma=plan.simd()):
            code.add(*statements)
