"""The directory of a run's checkpoints: <output_dir>/<run name>/step-000012. Only names and files.

A checkpoint appears under its name by one rename, when it is complete and on the disk. One that the
store does not know was never committed; the trainer that starts next removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from kpipe.errors import TrainError

OPTIMIZER_DIR = "trainer"
"""In a checkpoint: what only the trainer needs."""

_NAME = re.compile(r"step-(\d{6,})")
_LOCK = ".trainer.lock"


class CheckpointFolder:
    """All checkpoints of one run. Steps count committed updates; step 0 is the base policy."""

    def __init__(self, output_dir: str, run_name: str) -> None:
        self.root = (Path(output_dir) / run_name).resolve()

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:06d}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One trainer at a time; a killed one leaves no lock behind. Raises TrainError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _LOCK).open("a+", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise TrainError(
                    f"Another trainer (process {lock.read().strip() or '?'}) is writing to {self.root}.",
                    "Stop it first, or wait until it is done.",
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def begin(self, step: int) -> Path:
        """An empty directory to write the checkpoint of `step` into."""
        path = self._draft(step)
        _remove(path)
        path.mkdir(parents=True)
        return path

    def publish(self, step: int) -> Path:
        """Give the directory from `begin` its name, once all of it is on the disk."""
        draft, path = self._draft(step), self.path(step)
        for entry in sorted(draft.rglob("*")):
            _fsync(entry)
        _fsync(draft)
        draft.rename(path)
        _fsync(self.root)
        return path

    def sweep(self, latest: int) -> list[Path]:
        """Remove what a killed trainer left: drafts, and the checkpoint after the last committed one.

        Checkpoints further ahead are from another database that used this directory. They are somebody's
        models: they are set aside into a directory of their own. Returns those.
        """
        unknown = sorted((s, p) for s, p in self._checkpoints() if s > latest)
        foreign = [p for _, p in unknown] if any(s > latest + 1 for s, _ in unknown) else []
        if foreign:
            aside = self._free_name("set-aside")
            aside.mkdir()
            foreign = [p.rename(aside / p.name) for p in foreign]
        else:
            for _, path in unknown:
                _remove(path)
        for leftover in [*self.root.glob(".draft-step-*"), *self.root.glob(".removed-step-*")]:
            _remove(leftover)
        return foreign

    def prune(
        self, steps: Collection[int], *, latest: int, optimizers: int, weights: int, every: int
    ) -> None:
        """Of the committed `steps`, keep the last `weights`, step 0 and every so many (0: no others); and
        the optimizer state of the last `optimizers` only.
        """
        for step in steps:
            path, age = self.path(step), latest - step
            kept = step == 0 or (every > 0 and step % every == 0)
            if not kept and age >= weights:
                _remove(path)
            elif age >= optimizers:
                _remove(path / OPTIMIZER_DIR)

    def _checkpoints(self) -> Iterator[tuple[int, Path]]:
        for path in self.root.iterdir():
            if (found := _NAME.fullmatch(path.name)) and path.is_dir():
                yield int(found[1]), path

    def _draft(self, step: int) -> Path:
        return self.root / f".draft-step-{step:06d}"

    def _free_name(self, stem: str) -> Path:
        number = 1
        while (path := self.root / f"{stem}-{number}").exists():
            number += 1
        return path


def _remove(path: Path) -> None:
    """By way of another name, so that a directory under its own name is always whole."""
    if not path.exists():
        return
    doomed = path if path.name.startswith(".") else path.with_name(f".removed-{path.name}")
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
    shutil.rmtree(doomed)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_checkpoint_of(path: Path, run_name: str) -> bool:
    """Is this a directory that a trainer made for the run: <run name>/step-000012?"""
    return bool(_NAME.fullmatch(path.name)) and path.parent.name == run_name and path.is_dir()


def remove(path: Path) -> None:
    """Delete a checkpoint; while that lasts it has another name."""
    _remove(path)
