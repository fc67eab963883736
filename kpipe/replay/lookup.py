"""Find what a person named. What is not there is a UsageError with its nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from kpipe.domain.near import near
from kpipe.errors import UsageError
from kpipe.store import runs, stories
from kpipe.store.database import Database
from kpipe.store.records import Run, Story

SHOWN = 5


def find_run(db: Database, name: str) -> Run:
    """Raises UsageError for an unknown name."""
    run = db.read(runs.get, name)
    if run is None:
        names = [r.name for r in db.read(runs.list_)]
        raise UsageError(f"There is no run {name!r} in this database.{near(name, names)}", fix_run(names))
    return run


def find_story(db: Database, trajectory_id: int) -> Story:
    """Raises UsageError for an unknown id."""
    story = db.read(stories.story, trajectory_id)
    if story is None:
        known = db.read(stories.ids)
        raise UsageError(
            f"There is no trajectory {trajectory_id} in this database.{near_ids(trajectory_id, known)}",
            "`SELECT trajectory_id, problem, best_speedup FROM v_trajectory` lists all.",
        )
    return story


def check_turn(story: Story, turn: int) -> None:
    """Raises UsageError unless the trajectory has such a turn; turns count from 0."""
    known = [t.ordinal for t in story.turns]
    if turn not in known:
        raise UsageError(
            f"Trajectory {story.id} has no turn {turn}.{near_ids(turn, known)}",
            "Turns count from 0." if known else "Nothing of it has been played yet.",
        )


def fix_run(names: Sequence[str]) -> str:
    """What to do about a wrong run name, where these are there."""
    return f"Name one with --run: {', '.join(names)}." if names else "`kpipe run --run NAME` starts one."


def near_ids(wanted: int, known: Sequence[int]) -> str:
    """The same for numbers: those that are nearest in value."""
    close = sorted(sorted(known, key=lambda x: (abs(x - wanted), x))[:SHOWN])
    return f" Near: {', '.join(map(str, close))}." if close else ""
