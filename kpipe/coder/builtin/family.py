"""A family of kernels: everything that problems of one shape of computation have in common."""

from __future__ import annotations

from typing import Protocol

from kpipe.coder.builtin.plan import Plan
from kpipe.coder.builtin.text import Code


class Family(Protocol):
    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the arguments of `forward`; each is a contiguous tensor of float."""

    @property
    def improvements(self) -> frozenset[str]:
        """Those that can change this kernel; it stays as it is under all others."""

    def write(self, code: Code, plan: Plan) -> None:
        """Everything between the pointers to the arguments and ``return Y;``."""
