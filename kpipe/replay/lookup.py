"""Find what a person named. What is not there is a UsageError with its nearest neighbours."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kpipe.errors import UsageError
from kpipe.store import runs
from kpipe.store.database import Database
from kpipe.store.records import Run

SHOWN = 5


def find_run(db: Database, name: str) -> Run:
    """Raises UsageError for an unknown name."""
    run = db.read(runs.get, name)
    if run is None:
        names = [r.name for r in db.read(runs.list_)]
        raise UsageError(f"There is no run {name!r} in this database.{near(name, names)}", fix_run(names))
    return run


def fix_run(names: Sequence[str]) -> str:
    """What to do about a wrong run name, where these are there."""
    return f"Name one with --run: {', '.join(names)}." if names else "`kpipe run --run NAME` starts one."


def near(name: str, known: Sequence[str]) -> str:
    """The end of a sentence: " Near: a, b." or nothing."""
    close = difflib.get_close_matches(name, list(known), n=SHOWN, cutoff=0.4)
    return f" Near: {', '.join(dict.fromkeys(close))}." if close else ""


def near_ids(wanted: int, known: Sequence[int]) -> str:
    """The same for numbers: those that are nearest in value."""
    close = sorted(sorted(known, key=lambda x: (abs(x - wanted), x))[:SHOWN])
    return f" Near: {', '.join(map(str, close))}." if close else ""
