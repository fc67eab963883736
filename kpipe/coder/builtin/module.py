"""The KernelBench-format module around a kernel, as a person would write it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from kpipe.coder.builtin.cpp import Plan
from kpipe.coder.builtin.specs import SPECS, Spec

TEMPLATE = '''\
# applied: {applied}
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
{source}"""

kernel = load_inline(name="{name}", cpp_sources=CPP, functions=["forward"], extra_cflags={flags})


class ModelNew(nn.Module):
{init}    def forward(self, {arguments}):
        return kernel.forward({call})
'''


def render(problem_name: str, applied: Sequence[str]) -> str:
    """The whole module. Its code depends on the set of transformations only, not on their order."""
    spec = SPECS[problem_name]
    plan = Plan(frozenset(applied))
    use_library = plan.has("library") and spec.library_call
    return TEMPLATE.format(
        applied=", ".join(applied),
        source=spec.family.render(plan).source(),
        name=f"{problem_name}_kernel",
        flags=str(plan.flags).replace("'", '"'),
        init=_init(spec),
        arguments=spec.arguments,
        call=spec.library_call if use_library else spec.call,
    )


def _init(spec: Spec) -> str:
    if not spec.setup:
        return ""
    lines = ["super().__init__()", *spec.setup]
    return f"    def __init__(self, {spec.init}):\n" + indent("\n".join(lines), " " * 8) + "\n\n"
