"""Kernels that reduce everything to one number: the mean of a value per element."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.cpp import Kernel, Plan, block, pointers, tensors

LANES = 16


@dataclass(frozen=True)
class MeanLoss:
    """`steps` are expressions over `v`, the running value, and p[j], t[j] of the row."""

    steps: tuple[str, ...]

    def applies(self) -> frozenset[str]:
        return frozenset({"fuse", "simd", "unroll", "fastmath", "half", "double", "skip", "cuda", "naive"})

    def render(self, plan: Plan) -> Kernel:
        start = "auto Y = torch::empty({}, P.options());\nint64_t n = P.size(0), m = P.size(1);\n"
        body = start + pointers("p", "t") + ("" if plan.has("fuse") else self._through_memory(plan))
        body += "double total = 0;\n" + self._sum(plan)
        return Kernel(
            "", tensors(("p", "t")), body + "Y.data_ptr<float>()[0] = (float)(total / (n * m));\nreturn Y;\n"
        )

    def _through_memory(self, plan: Plan) -> str:
        """A pass over memory for every step, into a temporary W."""
        out = "auto W = torch::empty_like(P);\nfloat* w = W.data_ptr<float>();\n"
        for i, step in enumerate(self.steps):
            rows = "const float* pr = p + i * m;\nconst float* tr = t + i * m;\n" if i == 0 else ""
            value = "" if i == 0 else "float v = wr[j];\n"
            loop = plan.simd() + block("for (int64_t j = 0; j < m; j++)", value, f"wr[j] = {step};\n")
            out += block("for (int64_t i = 0; i < n; i++)", rows, "float* wr = w + i * m;\n", loop)
        return out

    def _element(self, plan: Plan, at: str, into: str) -> str:
        """Add the value of element `at` of the row to `into`."""
        if not plan.has("fuse"):
            return f"{into} += wr[{at}];\n"
        steps = "".join(f"v = {step};\n" for step in self.steps[1:])
        return f"float v = {self.steps[0]};\n{steps}{into} += v;\n".replace("[j]", f"[{at}]")

    def _sum(self, plan: Plan) -> str:
        if plan.has("fuse"):
            start = "const float* pr = p + i * m;\nconst float* tr = t + i * m;\n" + plan.row_start("pr", "m")
        else:
            start = "const float* wr = w + i * m;\n" + plan.row_start("wr", "m")
        if plan.has("unroll"):
            lanes = block(f"for (int k = 0; k < {LANES}; k++)", self._element(plan, "j + k", "part[k]"))
            inner = f"{plan.real} part[{LANES}] = {{}};\n"
            inner += block(f"for (int64_t j = 0; j < m; j += {LANES})", plan.simd(), lanes)
            inner += f"{plan.real} sum = 0;\nfor (int k = 0; k < {LANES}; k++) sum += part[k];\n"
        else:
            loop = block("for (int64_t j = 0; j < m; j++)", self._element(plan, "j", "sum"))
            inner = f"{plan.real} sum = 0;\n{plan.simd('+ : sum')}{loop}"
        return block(f"for (int64_t i = 0; i < {plan.rows()}; i++)", start, inner, "total += sum;\n")
