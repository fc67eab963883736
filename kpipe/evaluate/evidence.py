"""Logs that people and policies read: short, and without this machine's paths."""

from __future__ import annotations

import re

MAX_LOG = 4000
_PATH = re.compile(r"(?<![\w.<])/(?:[\w.+@~-]+/)+(?=[\w.+@<-])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def tidy(text: str, limit: int = MAX_LOG) -> str:
    """Directories removed, control characters too, and the middle cut out of what is longer than `limit`."""
    text = _CONTROL.sub("", _PATH.sub("", text[: 1 << 20])).strip()
    if len(text) <= limit:
        return text
    half = limit // 2 - 10
    return f"{text[:half]}\n[...]\n{text[-half:]}"
