"""When the next request may go: so many at once, our limits per minute, the server's, and its pauses.

A 429 holds back every request of this client and halves how many may be on their way; each answer lets a little
more through again (additive increase, multiplicative decrease, as TCP does it).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kpipe.coder.limits import KINDS, Mirror, Window, read_headers

SOON_S = 0.01
"""The shortest sleep: rounding must not make a loop of many tiny ones."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One request on its way. `sent` is all that this client has sent of each kind, this request included."""

    number: int
    at: float
    amounts: dict[str, float]
    sent: dict[str, float]
    entries: dict[str, list[float]]
    open: bool = True


@dataclass
class Pace:
    """`most` requests at once; `rpm` requests and `tpm` tokens in any minute, None for no limit of ours."""

    most: int
    rpm: int | None = None
    tpm: int | None = None
    clock: Callable[[], float] = time.monotonic
    flying: int = 0
    _allowed: float = 0.0
    _cut_at: float = -1.0
    _paused_until: float = 0.0
    _heard: int = -1
    _sent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    _windows: dict[str, Window] = field(default_factory=dict)
    _mirrors: dict[str, Mirror] = field(default_factory=lambda: {kind: Mirror() for kind in KINDS})
    _count: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._allowed = float(self.most)
        for kind, limit in (("requests", self.rpm), ("tokens", self.tpm)):
            if limit is not None:
                self._windows[kind] = Window(limit)

    @property
    def allowed(self) -> int:
        """Requests that may be on their way now."""
        return max(1, int(self._allowed))

    async def admit(self, tokens: int) -> Ticket:
        """Wait until a request of about so many tokens may go; those who wait go in the order they came."""
        async with self._turn:
            while (wait := self.wait_s(tokens)) != 0:
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), None if wait is None else max(SOON_S, wait))
                except TimeoutError:
                    continue
            return self.take(tokens)

    def wait_s(self, tokens: int) -> float | None:
        """Seconds until such a request may go, as things stand; None: when another one has come back."""
        if self.flying >= self.allowed:
            return None
        now, amounts = self.clock(), _amounts(tokens)
        waits = [self._paused_until - now]
        waits += [window.wait_s(amounts[kind], now) for kind, window in self._windows.items()]
        waits += [mirror.wait_s(amounts[kind], now) for kind, mirror in self._mirrors.items()]
        return max(0.0, *waits)

    def take(self, tokens: int) -> Ticket:
        """Write the request down as sent."""
        now, amounts = self.clock(), _amounts(tokens)
        entries = {kind: window.take(amounts[kind], now) for kind, window in self._windows.items()}
        for kind, amount in amounts.items():
            self._sent[kind] += amount
            self._mirrors[kind].take(amount, now)
        self.flying += 1
        self._count += 1
        return Ticket(self._count, now, amounts, dict(self._sent), entries)

    def hear(self, ticket: Ticket, headers: Mapping[str, str]) -> None:
        """Learn from the headers of the response, unless a later request was answered before."""
        if ticket.number <= self._heard:
            return
        self._heard = ticket.number
        now = self.clock()
        for kind, told in read_headers(headers).items():
            self._mirrors[kind].hear(told, self._sent[kind] - ticket.sent[kind], now)

    def land(self, ticket: Ticket, *, answered: bool, tokens: int | None = None) -> None:
        """The request is over. `tokens` is what it really was, where that is known."""
        if not ticket.open:
            return
        ticket.open = False
        self.flying -= 1
        if answered:
            self._allowed = min(float(self.most), self._allowed + 1 / self._allowed)
        if tokens is not None and "tokens" in ticket.entries:
            self._windows["tokens"].correct(ticket.entries["tokens"], tokens)
        self._changed.set()

    def hold(self, ticket: Ticket, seconds: float) -> None:
        """The server is overrun: nothing for so long, then half as many at once; halved once per wave."""
        now = self.clock()
        self._paused_until = max(self._paused_until, now + seconds)
        if ticket.at > self._cut_at:
            self._allowed = max(1.0, self._allowed / 2)
            self._cut_at = now
        self._changed.set()


def _amounts(tokens: int) -> dict[str, float]:
    return {"requests": 1.0, "tokens": float(tokens)}
