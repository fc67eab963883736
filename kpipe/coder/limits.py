"""How much may be sent now: our own limits per minute, and what a server's headers say of its limits. No clock."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MINUTE_S = 60.0
LONGEST_TRUST_S = 60.0
"""So long at most nothing is sent because a header says so: then the server may say it again, with a 429."""
KINDS = ("requests", "tokens")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 1e-3)


@dataclass
class Window:
    """At most `limit` in any minute. An amount above it counts as all of it, or it could never be sent."""

    limit: float
    _sent: deque[list[float]] = field(default_factory=deque)
    _sum: float = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until this much may be sent."""
        self._forget(now)
        missing = self._sum + min(amount, self.limit) - self.limit
        for at, sent in self._sent:
            if missing <= 0:
                break
            missing -= sent
            if missing <= 0:
                return max(0.0, at + MINUTE_S - now)
        return 0.0

    def take(self, amount: float, now: float) -> list[float]:
        """Write it down; the entry, for `correct`."""
        entry = [now, min(amount, self.limit)]
        self._sent.append(entry)
        self._sum += entry[1]
        return entry

    def correct(self, entry: list[float], amount: float) -> None:
        """What was sent turned out to be this much."""
        change = min(amount, self.limit) - entry[1]
        entry[1] += change
        if self._sent and entry[0] >= self._sent[0][0]:
            self._sum += change

    def _forget(self, now: float) -> None:
        while self._sent and self._sent[0][0] + MINUTE_S <= now:
            self._sum -= self._sent.popleft()[1]
        if not self._sent:
            self._sum = 0.0


@dataclass(frozen=True, slots=True)
class Told:
    """One kind of limit in a response's headers: `reset_s` seconds until it is full again."""

    remaining: float
    limit: float | None = None
    reset_s: float | None = None


@dataclass
class Mirror:
    """A server's bucket as its last headers show it, less what was sent since, and refilled as time goes by."""

    level: float = math.inf
    limit: float = math.inf
    rate: float = 0.0
    at: float = 0.0
    told_at: float = 0.0

    def hear(self, told: Told, sent_since: float, now: float) -> None:
        """`sent_since` is what the server had not counted yet when it wrote this."""
        missing = None if told.limit is None else max(0.0, told.limit - told.remaining)
        if missing and told.reset_s:
            self.rate = missing / told.reset_s
        elif told.limit is not None:
            self.rate = told.limit / MINUTE_S
        else:
            self.rate = 1.0 / told.reset_s if told.reset_s else 1.0
        self.limit = math.inf if told.limit is None else told.limit
        self.level, self.at, self.told_at = told.remaining - sent_since, now, now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until this much is there, as far as one knows."""
        if math.isinf(self.level):
            return 0.0
        self._refill(now)
        missing = min(amount, max(self.limit, 1.0)) - self.level
        trusted = max(0.0, self.told_at + LONGEST_TRUST_S - now)
        return min(trusted, max(0.0, missing) / self.rate) if self.rate else 0.0

    def take(self, amount: float, now: float) -> None:
        self._refill(now)
        self.level -= min(amount, self.limit)

    def _refill(self, now: float) -> None:
        if not math.isinf(self.level):
            self.level = min(self.limit, self.level + (now - self.at) * self.rate)
        self.at = now


def read_headers(headers: Mapping[str, str]) -> dict[str, Told]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, as far as they are there and make sense."""
    found = {}
    for kind in KINDS:
        remaining = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
        if remaining is not None:
            limit = _number(headers.get(f"x-ratelimit-limit-{kind}"))
            reset = duration_s(headers.get(f"x-ratelimit-reset-{kind}", ""))
            found[kind] = Told(remaining, limit or None, reset)
    return found


def duration_s(text: str) -> float | None:
    """Seconds: '1.5', '6ms', '1m0s', '2h3m'. None for anything else."""
    text = text.strip()
    if (plain := _number(text)) is not None:
        return plain
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
