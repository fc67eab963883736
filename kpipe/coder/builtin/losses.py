"""Kernels that reduce everything to one number: the mean of a value per element."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.plan import LANES, Plan
from kpipe.coder.builtin.text import Code


@dataclass(frozen=True)
class MeanLoss:
    """The mean over p[n, m] and t[n, m] of `steps`: the first over ``pr[j]`` and ``tr[j]``, the others over `v`."""

    steps: tuple[str, ...]
    tensors: tuple[str, ...] = ("p", "t")
    improvements: frozenset[str] = frozenset({"fuse", "simd", "unroll", "fastmath", "wide"})

    def write(self, code: Code, plan: Plan) -> None:
        code.add("auto Y = torch::empty({}, P.options());")
        code.add(f"int64_t n = {plan.rows('P.size(0)')}, m = P.size(1);")
        if not plan.has("fuse"):
            self._through_memory(code, plan)
        code.add("double total = 0;")
        with code.loop("i", "n"):
            self._rows(code, plan)
            self._sum(code, plan)
            code.add("total += sum;")
        code.add("Y.data_ptr<float>()[0] = total / (n * m);")

    def _rows(self, code: Code, plan: Plan) -> None:
        if plan.has("fuse"):
            code.add("const float* pr = p + i * m;", "const float* tr = t + i * m;")
        else:
            code.add("const float* wr = w + i * m;")

    def _through_memory(self, code: Code, plan: Plan) -> None:
        """A pass for every step, into a temporary W."""
        code.add("auto W = torch::empty_like(P);", "float* w = W.data_ptr<float>();")
        with code.loop("e", "n * m", pragma=plan.simd()):
            code.add(f"w[e] = {self.steps[0].replace('r[j]', '[e]')};")
        for step in self.steps[1:]:
            with code.loop("e", "n * m", pragma=plan.simd()):
                code.add("float v = w[e];", f"w[e] = {step};")

    def _sum(self, code: Code, plan: Plan) -> None:
        if not plan.has("unroll"):
            code.add(f"{plan.real} sum = 0;")
            with code.loop("j", "m", pragma=plan.simd("+ : sum")):
                self._add(code, plan, "j", "sum")
            return
        code.add(f"float part[{LANES}] = {{}};")
        with code.loop("j", "m", step=str(LANES)), code.loop("k", str(LANES), pragma=plan.simd()):
            self._add(code, plan, "j + k", "part[k]")
        code.add("float sum = 0;", f"for (int k = 0; k < {LANES}; k++) sum += part[k];")

    def _add(self, code: Code, plan: Plan, at: str, into: str) -> None:
        """Add the value of element `at` of the row to `into`."""
        if not plan.has("fuse"):
            code.add(f"{into} += wr[{at}];")
            return
        first, *others = (step.replace("[j]", f"[{at}]") for step in self.steps)
        code.add(f"float v = {first};", *(f"v = {step};" for step in others), f"{into} += v;")
