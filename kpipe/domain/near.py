"""Names that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """`` Near: a, b.`` to put behind a sentence, or nothing when no known name resembles `name`."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f" Near: {', '.join(dict.fromkeys(found))}." if found else ""
