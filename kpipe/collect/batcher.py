"""Many trajectories, one model: requests that wait together are sampled together.

The newest published policy is loaded between batches, so every turn is sampled from one known version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from kpipe.collect.draining import Draining
from kpipe.errors import PolicyError
from kpipe.policy.base import Policy, Suggestion, SuggestRequest
from kpipe.store.records import PolicyVersion


@dataclass
class Batcher:
    """A Suggester over one in-process policy.

    A batch is sampled as soon as `batch_size` requests wait or the oldest has waited `wait_s` seconds.
    """

    policy: Policy
    version: PolicyVersion
    latest: Callable[[], Awaitable[PolicyVersion | None]]
    batch_size: int
    wait_s: float
    _draining: bool = False
    _waiting: list[tuple[SuggestRequest, asyncio.Future[tuple[Suggestion, int]]]] = field(
        default_factory=list
    )
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _full: asyncio.Event = field(default_factory=asyncio.Event)

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        if self._draining:
            raise Draining
        answer: asyncio.Future[tuple[Suggestion, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._arrived.set()
        if len(self._waiting) >= self.batch_size:
            self._full.set()
        return await answer

    def drain(self) -> None:
        """Send everybody who waits away; what is being sampled is still delivered."""
        self._draining = True
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(Draining())
        self._waiting.clear()

    async def run(self) -> None:
        """Sample batches until cancelled. An error of the model reaches every request of its batch."""
        while True:
            await self._arrived.wait()
            if len(self._waiting) < self.batch_size:
                await _first(self._full.wait(), self.wait_s)
            batch, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
            if not self._waiting:
                self._arrived.clear()
            if len(self._waiting) < self.batch_size:
                self._full.clear()
            await self._sample([(r, f) for r, f in batch if not f.cancelled()])

    async def _sample(
        self, batch: list[tuple[SuggestRequest, asyncio.Future[tuple[Suggestion, int]]]]
    ) -> None:
        if not batch:
            return
        try:
            await self._refresh()
            said = await asyncio.to_thread(self.policy.suggest, [request for request, _ in batch])
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), suggestion in zip(batch, said, strict=True):
            if not answer.done():
                answer.set_result((suggestion, self.version.id))

    async def _refresh(self) -> None:
        newest = await self.latest()
        if newest is None or newest.step == self.version.step:
            return
        if not Path(newest.path).is_dir():
            raise missing_checkpoint(newest)
        await asyncio.to_thread(self.policy.load, newest.path, newest.step)
        self.version = newest


def missing_checkpoint(version: PolicyVersion) -> PolicyError:
    return PolicyError(
        f"Policy version {version.step} is in the database, but its directory {version.path} is gone.",
        "Restore the directory, or start a new run with --run NAME.",
    )


async def _first(awaitable: Awaitable[object], timeout_s: float) -> None:
    """Wait, but no longer than `timeout_s`."""
    try:
        await asyncio.wait_for(awaitable, timeout_s)
    except TimeoutError:
        return
