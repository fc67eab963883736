"""What a chat completion says, from servers that leave things out; how long to wait for the next try."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 20.0
"""Bounds of our own waits; a server's Retry-After may ask for more."""
JITTER = 0.25
"""A wait that the server asked for is lengthened by up to this share, so that not all come back at once."""
SHOWN_CHARS = 80


@dataclass(slots=True)
class Reply:
    """One answered or failed request. `error` says why there is no answer, `status` is its HTTP status or 0.

    `tokens_*` and `attempts` count every attempt, `tokens_cached` those of the prompt that the server had
    already; `seconds` is all of the time that they took, without the `waited` ones until they might be sent.
    """

    text: str = ""
    refusal: str = ""
    finish: str = ""
    error: str | None = None
    status: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    attempts: int = 0
    seconds: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Setback:
    """Why an attempt failed, whether another makes sense, and how long the server asks to wait."""

    reason: str
    again: bool
    status: int = 0
    wait_s: float | None = None


def read_completion(body: bytes, reply: Reply) -> Setback | None:
    """Fill `reply`; what the answer cost counts even where it says nothing."""
    try:
        tree = _dict(json.loads(body))
    except (ValueError, RecursionError):
        start = body[:SHOWN_CHARS].decode("utf-8", "replace")
        return Setback(f"the answer is no JSON; it begins {start!r}", again=True)
    usage = _dict(tree.get("usage"))
    reply.tokens_in += _count(usage.get("prompt_tokens"))
    reply.tokens_out += _count(usage.get("completion_tokens"))
    cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reply.tokens_cached += min(cached, _count(usage.get("prompt_tokens")))
    choices = tree.get("choices")
    if not isinstance(choices, list) or not choices:
        said = _dict(tree.get("error")).get("message") or "it has no choices"
        return Setback(f"the answer is no chat completion: {said}", again=True)
    choice = _dict(choices[0])
    message = _dict(choice.get("message"))
    reply.text, reply.refusal = _text(message.get("content")), _text(message.get("refusal"))
    reply.finish = _text(choice.get("finish_reason"))
    return None


def wait_s(failures: int, asked: float | None) -> float:
    """Seconds before the next attempt: what was asked for, else twice as long after each of `failures`."""
    if asked is not None:
        return asked * random.uniform(1, 1 + JITTER)
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**failures) * random.uniform(0.5, 1)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a server asks to wait: a number, or the time from `now` to a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            asked = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return max(0.0, asked) if math.isfinite(asked) else None
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _text(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_text(_dict(part).get("text")) for part in value)
    return value if isinstance(value, str) else ""
