"""An offline stand-in for a blackbox LLM: rules that read the suggestion's words and rewrite the kernel.

It knows the built-in problems only. docs/builtin_coder.md lists what each transformation does where.
"""

from __future__ import annotations

from collections.abc import Collection

from kpipe import problems
from kpipe.coder.base import CoderReply, CoderRequest
from kpipe.coder.builtin.catalogue import REWRITES
from kpipe.coder.builtin.module import ordered, render
from kpipe.coder.builtin.specs import SPECS
from kpipe.coder.builtin.words import strategy_in
from kpipe.domain.problem import Problem
from kpipe.domain.prompt import applied
from kpipe.domain.verdict import Outcome

SOUND = (None, Outcome.CORRECT, Outcome.UNCHANGED)


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
    """The new kernel; the old one as it is when the suggestion names nothing that would change it.

    A kernel that is known to be broken is mended first, as a programmer who is shown the error would do:
    the last of its transformations goes.
    """
    name, strategy = request.problem.name, strategy_in(request.suggestion)
    done = transformations(request.kernel)
    if strategy is None or strategy in done:
        return request.kernel
    kept = done if request.outcome in SOUND else done[:-1]
    planned = plan(name, kept, strategy)
    return render(name, planned) if planned not in (set(), set(done)) else request.kernel


def plan(problem_name: str, done: Collection[str], strategy: str) -> set[str]:
    """What a kernel consists of when `strategy` has been applied to one that consists of `done`."""
    if strategy in REWRITES:
        return effective(problem_name, {strategy})
    improvements = set(done) - REWRITES.keys()
    if strategy in SPECS[problem_name].family.improvements:
        improvements.add(strategy)
    return effective(problem_name, improvements)


def transformations(kernel: str) -> tuple[str, ...]:
    """Those that the kernel's first line names, in the catalogue's order; none for the reference."""
    words = applied(kernel)
    return () if words == "none" else tuple(word.strip() for word in words.split(","))


def effective(problem_name: str, planned: Collection[str]) -> set[str]:
    """Without those that leave no trace beside the others, as an order of loops does where tiles replace it."""
    kept = set(planned)
    for one in ordered(planned):
        if _code(render(problem_name, kept)) == _code(render(problem_name, kept - {one})):
            kept.discard(one)
    return kept


def _code(kernel: str) -> str:
    """All but the line that names the transformations."""
    return kernel.partition("\n")[2]
