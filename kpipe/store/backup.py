"""Copy a database that is in use."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from pathlib import Path

from kpipe.errors import StoreError
from kpipe.store import sqlite
from kpipe.store.database import Database
from kpipe.store.failures import explained


def backup(db: Database, target: Path) -> int:
    """Write one consistent state of a SQLite database to the new file `target`; its size in bytes.

    Writers go on meanwhile. The file appears under its name only when it is complete. Raises StoreError.
    """
    if db.path is None:
        raise StoreError(
            "kpipe backs up SQLite only; Postgres has its own tool.",
            f"pg_dump --format=custom --file={target} {db.name}",
        )
    if target.exists():
        raise StoreError(f"{target} exists already.", "Name a new file; nothing is ever overwritten.")
    if not target.parent.is_dir():
        raise StoreError(f"The directory {target.parent} does not exist.", f"mkdir -p {target.parent}")
    unfinished = target.with_name(f"{target.name}.unfinished-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with explained(str(target)):
            _copy(db.path, unfinished)
        _publish(unfinished, target)
    except FileExistsError:
        raise StoreError(
            f"{target} exists already.", "Name a new file; nothing is ever overwritten."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def _publish(unfinished: Path, target: Path) -> None:
    """Give the file its name, unless there is one of that name. Raises FileExistsError."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: take the name first, then fill it
        target.touch(exist_ok=False)
        unfinished.replace(target)


def _copy(source: Path, target: Path) -> None:
    """In one step: a snapshot that no writer can restart. Leaves a single file, safe on the disk."""
    with closing(sqlite.connect(source)) as live, closing(sqlite.connect(target, mode="rwc")) as copy:
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    with target.open("rb+") as file:
        os.fsync(file.fileno())
