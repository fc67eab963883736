"""The port between the collector and whoever writes the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome
from kpipe.store.records import CoderCall


@dataclass(frozen=True, slots=True)
class CoderRequest:
    """`kernel` is the current one (B); at the start it is the reference. `outcome` and `evidence` are its verdict.

    `sample` tells apart several answers to the same suggestion, from 0.
    """

    problem: Problem
    kernel: str
    suggestion: str
    outcome: Outcome | None = None
    evidence: str = ""
    sample: int = 0


@dataclass(frozen=True, slots=True)
class CoderReply:
    """`kernel` None means that there was no code: a fault of the coder, never a reward.

    `call` is the row for the ledger; None when nothing was paid.
    """

    kernel: str | None
    call: CoderCall | None = None
    error: str | None = None


class Coder(Protocol):
    async def implement(self, request: CoderRequest) -> CoderReply:
        """Turn the suggestion into a whole new module with ModelNew."""

    def supports(self, problem: Problem) -> str | None:
        """Why it cannot work on this problem; None when it can."""

    async def check(self) -> None:
        """Raises CoderError when it could not work at all. Called before any group is opened."""

    async def close(self) -> None: ...


class Budget(Protocol):
    """What the calls of a run may cost, whoever makes them. A paid call is written down with its turn."""

    async def check(self, usd: float) -> None:
        """Raises BudgetSpent when not even one call of at most so many dollars may be made."""

    async def reserve(self, key: str, usd: float) -> None:
        """Set aside what this request costs at worst; waits for calls on their way. Raises BudgetSpent."""

    async def release(self, key: str) -> None:
        """Nothing was paid for this request."""

    def landed(self, key: str) -> None:
        """The request is over, and will be written down soon."""
