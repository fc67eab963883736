"""Faults by name, so that a client in any language can ask for one: in a header, in the query, or beforehand.

429, 429:2 (Retry-After: 2), 500, 503, any other status      slow:SECONDS      cut, cut:half
malformed, empty (no choices), blank, refusal, filtered      length (cut off)  no-code     huge:BYTES
"""

from __future__ import annotations

from aiohttp import web

from kpipe.loopback.answers import (
    Answer,
    api_error,
    body,
    code_reply,
    completion,
    cut,
    huge,
    says,
    slow,
    status,
)

HEADER = "X-Loopback-Fault"
QUERY = "fault"
HUGE_BYTES = 64 << 20
SLOW_S = 1.0
_BEGINNING = b'{"id": "chatcmpl-1", "choices": [{"message": {"content": "import to'
_PLAIN: dict[str, Answer] = {
    "malformed": body('{"choices": [{"mess'),
    "empty": body(completion("") | {"choices": []}),
    "blank": body(b""),
    "refusal": says(None, refusal="I cannot help with that."),
    "filtered": says(None, finish="content_filter"),
    "length": says(code_reply()[:60], finish="length"),
    "no-code": says("I would rather talk about the weather."),
}


def fault(text: str, normal: Answer) -> Answer:
    """The answer that `text` asks for; `normal` comes after a fault that only delays. Raises ValueError."""
    name, _, argument = text.strip().partition(":")
    try:
        if name.isdigit() and 400 <= int(name) <= 599:
            return status(int(name), retry_after=argument or None)
        match name, argument:
            case "slow", _:
                return slow(float(argument or SLOW_S), normal)
            case "cut", "" | "half":
                return cut(_BEGINNING if argument else None)
            case "huge", _:
                return huge(int(argument or HUGE_BYTES))
            case _ if not argument:
                return _PLAIN[name]
    except (KeyError, ValueError):
        pass
    known = "a status such as 429 or 429:RETRY_AFTER, slow:SECONDS, cut, cut:half, huge:BYTES"
    raise ValueError(f"there is no fault {text!r}; there are {known}, {', '.join(_PLAIN)}")


def unknown(error: ValueError) -> Answer:
    """What a client gets that asks for a fault that there is not."""

    async def answer(*_: object) -> web.StreamResponse:
        return api_error(400, f"Loopback: {error}.")

    return answer
