"""A directory that appears under its name when it is complete, and never in the place of another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kpipe.errors import UsageError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty directory to fill; it is called `target` when the block ends, and gone when it raises.

    Raises UsageError when `target` is there already, or its parent is not.
    """
    _check_free(target)
    if not target.absolute().parent.is_dir():
        raise UsageError(f"The directory {target.parent} does not exist.", f"mkdir -p {target.parent}")
    draft = target.absolute().with_name(f".{target.absolute().name}.unfinished-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for path in [*sorted(draft.rglob("*")), draft]:
            _fsync(path)
        _check_free(target)
        draft.rename(target)
        _fsync(target.absolute().parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_free(target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already.", "Name a new directory; nothing is ever overwritten.")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
