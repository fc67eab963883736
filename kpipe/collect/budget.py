"""coder.max_usd: what the calls of a run may cost, over all collectors that work on it."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from kpipe.errors import BudgetSpent
from kpipe.store import payments
from kpipe.store.database import Database
from kpipe.store.payments import Account

POLL_S = 0.1
STORED_WITHIN_S = 10.0
"""So long after a call came back its cost is expected in the store; it is not waited for any longer."""


@dataclass
class RunBudget:
    """Implements `kpipe.coder.base.Budget`. A call waits while one of ours may still turn out to be cheaper."""

    db: Database
    run_id: int
    max_usd: float | None
    _landed: dict[str, float | None] = field(default_factory=dict)
    """Our requests: None while one is on its way, else when it came back."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def check(self, usd: float) -> None:
        if self.max_usd is None:
            return
        now = await self.db.aread(payments.account, self.run_id)
        if now.paid + usd > self.max_usd:
            raise self._spent(now, usd)

    async def reserve(self, key: str, usd: float) -> None:
        async with self._turn:
            while full := await self.db.awrite(payments.reserve, self.run_id, key, usd, self.max_usd):
                if not any(self._may_shrink(k) for k in full.keys):
                    raise self._spent(full, usd)
                await asyncio.sleep(POLL_S)
            self._landed[key] = None

    async def release(self, key: str) -> None:
        await self.db.awrite(payments.release, self.run_id, key)

    def landed(self, key: str) -> None:
        now = time.monotonic()
        self._landed = {k: at for k, at in self._landed.items() if at is None or now - at < STORED_WITHIN_S}
        self._landed[key] = now

    def _may_shrink(self, key: str) -> bool:
        if key not in self._landed:
            return False
        at = self._landed[key]
        return at is None or time.monotonic() - at < STORED_WITHIN_S

    def _spent(self, now: Account, usd: float) -> BudgetSpent:
        lost = f" and {now.reserved:.4f} may have been paid for calls that were lost" if now.reserved else ""
        more = max(2 * (self.max_usd or 0.0), math.ceil(now.paid + now.reserved + usd))
        return BudgetSpent(
            f"coder.max_usd = {self.max_usd:g} is reached: {now.paid:.4f} US dollars are paid{lost}, "
            f"and the next call may cost up to {usd:.4f}.",
            f"Everything is stored. Go on with --set coder.max_usd={more:g}, or lower "
            "coder.max_tokens in a new run.",
        )
