"""From a problem and what has been applied to a KernelBench-format module, as a person would write it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from functools import cache

from kpipe import problems
from kpipe.coder.builtin.catalogue import TRANSFORMATIONS
from kpipe.coder.builtin.functions import needed
from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.specs import SPECS, Spec
from kpipe.coder.builtin.text import Code

TEMPLATE = '''\
# applied: {applied}
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
{source}"""

kernel = load_inline(name="{name}", cpp_sources=CPP, functions=["forward"], extra_cflags={flags})


class ModelNew(nn.Module):
{constructor}    def forward(self, {arguments}):
        return kernel.forward({call})
'''


def render(problem_name: str, applied: Collection[str]) -> str:
    """The whole module. Its text depends on the set of transformations only, not on their order."""
    spec = SPECS[problem_name]
    plan = Plan(frozenset(applied))
    constructor, arguments = _reference_parts(problem_name)
    tensors, call = spec.family.tensors, spec.call
    if plan.has("library"):
        tensors, call = ("ab", *tensors[2:]), (f"torch.mm({call[0]}, {call[1]})", *call[2:])
    return TEMPLATE.format(
        applied=", ".join(ordered(applied)),
        source=_cpp(spec, plan, tensors),
        name=f"{problem_name}_kernel",
        flags=str(plan.flags).replace("'", '"'),
        constructor=constructor,
        arguments=arguments,
        call=", ".join(call),
    )


def ordered(applied: Iterable[str]) -> list[str]:
    """In the catalogue's order."""
    return sorted(applied, key=TRANSFORMATIONS.index)


def _cpp(spec: Spec, plan: Plan, tensors: tuple[str, ...]) -> str:
    code = Code()
    with code.block(f"torch::Tensor forward({', '.join(f'torch::Tensor {t.upper()}' for t in tensors)})"):
        if plan.has("cuda"):
            code.add("__shared__ float stage[256];", "stage[threadIdx.x] = 0.0f;", "__syncthreads();")
        code.add(*(f"const float* {t} = {t.upper()}.data_ptr<float>();" for t in tensors))
        spec.family.write(code, plan)
        code.add("return Y;")
    body = code.text()
    return "\n".join(part for part in ("#include <torch/extension.h>\n", needed(plan, body), body) if part)


@cache
def _reference_parts(problem_name: str) -> tuple[str, str]:
    """The reference's constructor, as it stands there, and the arguments of its forward()."""
    source = next(p.source for p in problems.builtin() if p.name == problem_name)
    model = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Model")
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    arguments = ", ".join(a.arg for a in methods["forward"].args.args[1:])
    if "__init__" not in methods:
        return "", arguments
    text = ast.get_source_segment(source, methods["__init__"]) or ""
    return f"    {text}\n\n", arguments
