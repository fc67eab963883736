"""An offline stand-in for a blackbox LLM: rules that read the suggestion's words and rewrite the kernel.

It knows the built-in problems only. docs/builtin_coder.md lists what each transformation does where.
"""

from __future__ import annotations

from kpipe import problems
from kpipe.coder.base import CoderReply, CoderRequest
from kpipe.coder.builtin.module import render
from kpipe.coder.builtin.specs import SPECS
from kpipe.coder.builtin.words import strategy_in
from kpipe.domain.problem import Problem
from kpipe.domain.prompt import applied
from kpipe.domain.verdict import Outcome

REPLACES = {"half": "double", "double": "half", "poly": "approx", "approx": "poly"}
"""Transformations of the same thing: the later one wins."""


class BuiltinCoder:
    """Stateless: what has been applied stands in the kernel's first line."""

    async def implement(self, request: CoderRequest) -> CoderReply:
        return CoderReply(rewrite(request))

    def supports(self, problem: Problem) -> str | None:
        known = {p.name: p.source for p in problems.builtin()}
        if problem.name not in SPECS or known.get(problem.name) != problem.source:
            return "the built-in coder knows only the built-in problems"
        return None

    async def check(self) -> None:
        """There is nothing that could be missing."""

    async def close(self) -> None:
        """There is nothing to close."""


def rewrite(request: CoderRequest) -> str:
    """The new kernel; the old one unchanged when the suggestion names nothing that applies here.

    A kernel that is known to be broken is mended first, as a programmer who is shown the error would do:
    the transformation that was applied last goes.
    """
    spec = SPECS[request.problem.name]
    done = transformations(request.kernel)
    broken = request.outcome is not None and request.outcome not in (Outcome.CORRECT, Outcome.UNCHANGED)
    kept = done[:-1] if broken else done
    strategy = strategy_in(request.suggestion)
    if strategy is None or strategy in kept or strategy not in spec.family.applies():
        return request.kernel if not broken or not kept else render(request.problem.name, kept)
    return render(request.problem.name, apply(kept, strategy))


def transformations(kernel: str) -> tuple[str, ...]:
    """In the order in which they were applied; none for the reference."""
    words = applied(kernel)
    return () if words == "none" else tuple(w.strip() for w in words.split(","))


def apply(done: tuple[str, ...], strategy: str) -> tuple[str, ...]:
    """`naive` starts over; any other one ends a naive state and replaces its rival."""
    if strategy == "naive":
        return ("naive",)
    gone = {"naive", REPLACES.get(strategy, "")}
    return (*(s for s in done if s not in gone), strategy)
