"""Requests and tokens per minute as an API enforces them: buckets that refill steadily, and truthful headers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

FAR = {"limit": 10_000, "remaining": 9_999, "reset": 0.006}
"""What the headers say where there is no limit."""


@dataclass
class Bucket:
    """Holds at most `limit`, refilled once per `window_s` seconds."""

    limit: float
    window_s: float
    level: float = 0.0
    at: float = 0.0

    def refill(self, now: float) -> None:
        self.level = min(self.limit, self.level + (now - self.at) * self.limit / self.window_s)
        self.at = now

    def wait_s(self, amount: float) -> float:
        """Seconds until this much is there."""
        return max(0.0, min(amount, self.limit) - self.level) * self.window_s / self.limit


@dataclass
class Quota:
    """Limits per `window_s` seconds; None is none. A refused request takes nothing."""

    requests: int | None = None
    tokens: int | None = None
    window_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, Bucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        now = self.clock()
        for name, limit in (("requests", self.requests), ("tokens", self.tokens)):
            if limit is not None:
                self._buckets[name] = Bucket(limit, self.window_s, limit, now)

    def take(self, tokens: float) -> float:
        """Admit one request of so many tokens: 0; or the seconds until it would be admitted."""
        now = self.clock()
        for bucket in self._buckets.values():
            bucket.refill(now)
        amounts = {"requests": 1.0, "tokens": tokens}
        wait = max((b.wait_s(amounts[name]) for name, b in self._buckets.items()), default=0.0)
        if wait == 0:
            for name, bucket in self._buckets.items():
                bucket.level -= amounts[name]
        return wait

    def headers(self) -> dict[str, str]:
        """x-ratelimit-*, as OpenAI sends them."""
        found = {}
        for name in ("requests", "tokens"):
            b = self._buckets.get(name)
            said = FAR if b is None else {"limit": b.limit, "remaining": b.level, "reset": b.wait_s(b.limit)}
            found[f"x-ratelimit-limit-{name}"] = str(int(said["limit"]))
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, int(said["remaining"])))
            found[f"x-ratelimit-reset-{name}"] = duration(said["reset"])
        return found


def duration(seconds: float) -> str:
    """As OpenAI writes it: 6ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{round(rest, 3):g}s"
