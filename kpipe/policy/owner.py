"""Whose checkpoints lie in a directory? Two databases in one place must not overwrite each other's models."""

from __future__ import annotations

from pathlib import Path

from kpipe.errors import PolicyError
from kpipe.policy.files import locked

OWNER = "run.txt"
"""In <output_dir>/<run name>: the run, as `kpipe.store.runs.identity` names it."""


def claim(root: Path, run: str, *, known: bool) -> None:
    """Make `root` the directory of `run`; raise PolicyError where it is another's.

    `known`: the run has policy versions, so that checkpoints without an owner are its own.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".owner.lock"):
            owner = _owner(root)
            if owner == run:
                return
            if owner or not known:
                refuse_taken(root)
            (root / OWNER).write_text(run + "\n", encoding="utf-8")
    except OSError as error:
        raise PolicyError(
            f"The directory {root} cannot be written: {error.strerror}.",
            "Free the disk, check its permissions, or set output_dir to another place.",
        ) from None


def refuse_taken(root: Path) -> None:
    """Raise PolicyError when there are checkpoints in `root`, or the beginnings of one."""
    if any(root.glob("step-*")) or any(root.glob(".step-*.partial")):
        whose = (
            f"another run ({owner})" if (owner := _owner(root)) else "a run that this database does not know"
        )
        raise PolicyError(
            f"{root} holds the models of {whose}.",
            "Name this run differently (--run NAME), set output_dir, or move that directory away.",
        )


def _owner(root: Path) -> str:
    """Empty where there is none, or where a kill left nothing."""
    try:
        return (root / OWNER).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
