"""Checkpoint directories: which files count, their digest, and building one that is never half there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from kpipe.errors import PolicyError

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""Weights, configuration and tokenizer; pickled weights are never among them."""

RECIPE = "kpipe.json"
"""Written into a directory that `ensure_directory` built: what it was built from, and its digest."""


def checkpoint_files(path: Path) -> list[Path]:
    """The files of a checkpoint in a fixed order, sub-directories left out."""
    found = {file for pattern in PATTERNS for file in path.glob(pattern) if file.is_file()}
    return sorted(found - {path / RECIPE})


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 over the names and contents of a checkpoint's files. Raises PolicyError when there are none."""
    files = checkpoint_files(Path(path))
    if not files:
        raise PolicyError(f"There is no checkpoint in {path}.", "Check the path.")
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256")
        total.update(f"{file.name}\0{content.hexdigest()}\0".encode())
    return total.hexdigest()


def ensure_directory(path: Path, recipe: str, build: Callable[[Path], None]) -> str:
    """Make `path` hold what `build` writes for this `recipe`, and return its digest.

    A complete directory of the same recipe is kept. Otherwise `build` fills a directory beside it, which is
    flushed to disk and renamed: a kill at any point leaves the old directory, none, or the new one.
    Two processes that want the same directory wait for each other. Raises PolicyError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            if known := _complete(path, recipe):
                return known
            partial = path.with_name(f".{path.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            made = digest(partial)
            (partial / RECIPE).write_text(json.dumps({"recipe": recipe, "digest": made}))
            _flush(partial)
            _replace(partial, path)
            return made
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyError(
            f"The policy directory {path} cannot be written: {reason}.",
            "Free the disk, check its permissions, or set output_dir to another place.",
        ) from None


def _complete(path: Path, recipe: str) -> str | None:
    """The digest of a directory that was built by this recipe and is undamaged."""
    try:
        note = json.loads((path / RECIPE).read_text())
        if note["recipe"] == recipe and note["digest"] == digest(path):
            return str(note["digest"])
    except (OSError, ValueError, KeyError, TypeError, PolicyError):
        pass
    return None


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """One holder at a time; the kernel drops the lock with its holder, however that ends."""
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _flush(path: Path) -> None:
    for place in (*path.iterdir(), path):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace(partial: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    _flush_directory_entry(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush_directory_entry(parent: Path) -> None:
    handle = os.open(parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
