"""Many trajectories, one server that batches by itself: every request goes out as soon as it is made.

A turn is sampled by one known version. An adapter of a new version gets a name of its own, so nobody waits for it;
before full weights are replaced, requests on their way come in first and new ones wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from kpipe.collect.batcher import missing_checkpoint
from kpipe.collect.draining import Draining
from kpipe.policy import Suggestion, SuggestRequest
from kpipe.policy.line import Line
from kpipe.policy.server import ServerPolicy
from kpipe.store.records import PolicyVersion


@dataclass
class Streamer:
    """Implements `Suggesting` over a policy server. `run` holds the connections."""

    policy: ServerPolicy
    version: PolicyVersion
    latest: Callable[[], Awaitable[PolicyVersion | None]]
    _draining: bool = False
    _line: asyncio.Future[Line] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _working: set[asyncio.Task[tuple[Suggestion, int]]] = field(default_factory=set)
    _door: asyncio.Lock = field(default_factory=asyncio.Lock)
    _inside: int = 0
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.policy.config.concurrency)

    async def run(self) -> None:
        async with Line(self.policy.config) as line:
            self._line.set_result(line)
            await asyncio.Event().wait()

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        if self._draining:
            raise Draining
        work = asyncio.create_task(self._answer(request))
        self._working.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._draining:
                raise
            raise Draining from None
        finally:
            work.cancel()
            self._working.discard(work)

    def drain(self) -> None:
        """Send everybody away, also who is being answered: a sample costs nothing and is drawn again."""
        self._draining = True
        for work in self._working:
            work.cancel()

    async def _answer(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        line = await asyncio.shield(self._line)
        async with self._places:
            async with self._door:
                await self._refresh(line)
                self._inside += 1
                self._empty.clear()
                version, name = self.version, self.policy.name
            try:
                return await self.policy.ask(line, request, name), version.id
            finally:
                self._inside -= 1
                if self._inside == 0:
                    self._empty.set()

    async def _refresh(self, line: Line) -> None:
        newest = await self.latest()
        if newest is None or newest.step == self.version.step:
            return
        if not Path(newest.path).is_dir():
            raise missing_checkpoint(newest)
        if self._inside and not self.policy.leaves_others_alone(newest.path):
            await self._empty.wait()
        await self.policy.take_over(line, newest.path, newest.step)
        self.version = newest
