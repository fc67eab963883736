"""Wait for verdicts: one poll of the store serves every trajectory that waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kpipe.collect.draining import Draining
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import verdicts
from kpipe.store.database import Database


@dataclass
class VerdictWatch:
    """`poll_s` seconds between looks at the store, and none while nobody waits."""

    db: Database
    poll_s: float = 0.05
    _draining: bool = False
    _waiting: dict[int, list[asyncio.Future[Verdict]]] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def verdict_of(self, evaluation_id: int) -> Verdict:
        """The verdict once there is one; a job that was given up counts as INFRA."""
        if self._draining:
            raise Draining
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(evaluation_id, []).append(answer)
        self._arrived.set()
        return await answer

    def drain(self) -> None:
        """Send everybody who waits away; their verdicts stay in the store."""
        self._draining = True
        for answers in self._waiting.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(Draining())
        self._waiting.clear()

    async def run(self) -> None:
        """Deliver verdicts until cancelled."""
        while True:
            await self._arrived.wait()
            results = await self.db.aread(verdicts.evaluations, list(self._waiting))
            for evaluation_id, result in results.items():
                if result.state in ("done", "failed"):
                    self._deliver(evaluation_id, result.verdict or Verdict(Outcome.INFRA))
            if not self._waiting:
                self._arrived.clear()
            await asyncio.sleep(self.poll_s)

    def _deliver(self, evaluation_id: int, verdict: Verdict) -> None:
        for answer in self._waiting.pop(evaluation_id, []):
            if not answer.done():
                answer.set_result(verdict)
