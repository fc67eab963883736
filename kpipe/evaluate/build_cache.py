"""A directory of finished builds, found by their key. Safe under concurrent builders and kill -9.

An entry is a folder that appears by rename, so it is there whole or not at all. The least recently used
ones go when the limit is exceeded. Locks are flocks: they die with whoever held them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "module.so"
LOG = "log.txt"
META = "meta.json"
OWNED = ".owned"
YOUNG_S = 60.0
EVICT_EVERY = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """A build that succeeded (`library`) or failed (`library` None); `log` is what the compiler said."""

    library: Path | None
    log: str
    route: str


class BuildCache:
    """`limit_mb` bounds the size of finished builds; the shim's own library and headers come on top."""

    def __init__(self, directory: Path, limit_mb: int) -> None:
        self.directory = directory.expanduser().resolve()
        self.limit = limit_mb * 1024 * 1024
        self._stored = 0
        for name in ("entries", "tools", "tmp", "locks"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._sweep()

    @property
    def tools(self) -> Path:
        return self.directory / "tools"

    def get(self, key: str) -> Entry | None:
        """The entry, marked as used now."""
        folder = self._folder(key)
        try:
            meta = json.loads((folder / META).read_text())
            log = (folder / LOG).read_text()
            os.utime(folder)
        except (OSError, ValueError):
            return None
        library = folder / LIBRARY
        if meta["ok"] and not library.exists():
            return None
        return Entry(library if meta["ok"] else None, log, meta["route"])

    def put(self, key: str, built: Path | None, log: str, route: str) -> Entry:
        """Publish a build, moving `built` away; if somebody else was faster, theirs is returned."""
        with self.scratch() as folder:
            made = folder / "entry"
            made.mkdir()
            (made / META).write_text(json.dumps({"ok": built is not None, "route": route}))
            (made / LOG).write_text(log)
            if built is not None:
                shutil.move(built, made / LIBRARY)
            target = self._folder(key)
            target.parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # somebody else published the same build
                made.rename(target)
        self._stored += 1
        if self._stored % EVICT_EVERY == 0:
            self.evict()
        entry = self.get(key)
        if entry is None:
            raise OSError(f"the build cache {self.directory} lost an entry that was just written")
        return entry

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the cache's file system; gone afterwards, also after kill -9 (at the next start)."""
        folder = Path(tempfile.mkdtemp(dir=self.directory / "tmp"))
        try:
            with (folder / OWNED).open("w") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One holder among all threads and processes of this host."""
        with (self.directory / "locks" / name).open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def touch(self, folder: Path) -> None:
        """Mark a tool as used now."""
        with contextlib.suppress(OSError):
            os.utime(folder)

    def keep_newest(self, prefix: str, count: int) -> None:
        """Delete the tools of that kind which were not used for the longest time."""
        self._bury(folder for _, _, folder in _by_age(self.tools.glob(f"{prefix}*"))[:-count])

    def evict(self) -> int:
        """Delete the least recently used entries until the rest fits; returns how many went."""
        entries = _by_age((self.directory / "entries").glob("*/*"))
        total = sum(size for _, size, _ in entries)
        doomed = []
        for _, size, folder in entries:
            if total <= self.limit:
                break
            total -= size
            doomed.append(folder)
        self._bury(iter(doomed))
        return len(doomed)

    def _bury(self, folders: Iterator[Path]) -> None:
        """Each vanishes at once for everybody else."""
        for folder in folders:
            with self.scratch() as grave, contextlib.suppress(OSError):
                folder.rename(grave / "gone")

    def _folder(self, key: str) -> Path:
        return self.directory / "entries" / key[:2] / key

    def _sweep(self) -> None:
        """What killed builders left behind: folders that nobody holds any more."""
        for folder in (self.directory / "tmp").iterdir():
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > YOUNG_S:
                    with (folder / OWNED).open("a") as owner:
                        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)


def _by_age(folders: Iterator[Path]) -> list[tuple[float, int, Path]]:
    """(last use, size in bytes, folder), the oldest first."""
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
            found.append((folder.stat().st_mtime, size, folder))
    return sorted(found)
