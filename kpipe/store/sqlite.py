"""SQLite as a shared database: what a file must be, how it is opened, and the gate before its one writer."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event

from kpipe.errors import StoreError
from kpipe.store.schema import OURS
from kpipe.store.sql import dump_json

PAGE_SIZE = 8192
BUSY_TIMEOUT_MS = 30_000
NETWORK_FILE_SYSTEMS = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ocfs2",
        "gfs2",
    ),
    *(
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.ceph",
        "fuse.juicefs",
    ),
}


class Gate:
    """A file lock around write transactions: waiting in line is fair, SQLite's busy loop is not.

    The kernel lets go of it when its holder dies.
    """

    def __init__(self, database: Path) -> None:
        self.database = database
        self._file: int | None = None
        self._thread = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._thread:
            if self._file is None:
                self._file = os.open(f"{self.database}-gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


HEADER_BYTES = 100
"""Of every SQLite file that is not empty."""


def inspect_file(path: Path, *, create: bool) -> None:
    """Refuse a place where a database cannot live, before anything is made there. Raises StoreError."""
    if not path.parent.is_dir():
        raise StoreError(
            f"The directory {path.parent} for the database does not exist.", f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        raise StoreError(f"{path} is a directory, not a database.", "Give the path of a file with --db.")
    if not path.exists() and not create:
        raise StoreError(
            f"There is no database {path}.",
            "Create it with `kpipe db upgrade` or `kpipe run`, or name another one with --db.",
        )
    if (kind := file_system(path)) in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite loses data.",
            "Put it on a local disk, or use Postgres: --db postgresql://USER@HOST/NAME.",
        )
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"The directory {path.parent} is read-only.", "SQLite writes beside its file: use another one."
        )
    if path.exists():
        _inspect_content(path)


def _inspect_content(path: Path) -> None:
    if not _may(path, os.R_OK | os.W_OK):
        raise StoreError(
            f"{path} cannot be read and written by this user.", "Check its owner and permissions."
        )
    if (
        0 < path.stat().st_size < HEADER_BYTES
    ):  # SQLite takes the shortest for empty, and would write over them
        raise _no_database(path)
    # Never by opening the file ourselves: closing it would drop the locks that SQLite holds on it for other
    # connections of this process, and another process would then delete the log that they still write to.
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=0)) as raw:
        try:
            raw.execute("PRAGMA schema_version")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise _no_database(path) from None


def _no_database(path: Path) -> StoreError:
    return StoreError(
        f"{path} is not a kpipe database: it is no SQLite file.", "Give another path with --db."
    )


def _may(path: Path, what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def file_system(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `path`, by the kernel's mount table; '' where there is none."""
    if mounts is None:
        table = Path("/proc/self/mountinfo")
        mounts = table.read_text(encoding="utf-8", errors="replace") if table.exists() else ""
    place = path.parent.resolve() / path.name
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def connect(path: Path, *, mode: str = "rw") -> sqlite3.Connection:
    """A raw connection with our settings; `mode` 'rw' never creates a file, 'rwc' does."""
    raw = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,  # BEGIN is ours to say
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_MS / 1000,
    )
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA synchronous = FULL")
    return raw


def set_up(gate: Gate, *, create: bool) -> None:
    """Page size and write-ahead log, once in a file's life; somebody else's file is left as it is.

    Raises StoreError when the log does not take.
    """
    path = gate.database
    with closing(connect(path, mode="rwc" if create else "rw")) as raw:
        if (mode := _journal_mode(raw)) != "wal":
            tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
            if tables and OURS not in tables:
                return
            with gate():
                raw.execute(f"PRAGMA page_size = {PAGE_SIZE}")
                mode = _journal_mode(raw, " = WAL")
    if mode != "wal":
        raise StoreError(
            f"{path} lies on a file system that cannot hold a write-ahead log.",
            "Put it on a local disk, or use Postgres: --db postgresql://USER@HOST/NAME.",
        )


def _journal_mode(raw: sqlite3.Connection, change: str = "") -> str:
    return str(raw.execute(f"PRAGMA journal_mode{change}").fetchone()[0])


def writer(path: Path) -> sa.Engine:
    """One connection whose transactions take the write lock before they read anything."""
    return _engine(lambda: connect(path), "BEGIN IMMEDIATE", connections=1)


def reader(path: Path, connections: int) -> sa.Engine:
    """Connections that see one state of the database for as long as a transaction lasts, and cannot write."""

    def connect_query_only() -> sqlite3.Connection:
        raw = connect(path)
        raw.execute("PRAGMA query_only = ON")
        return raw

    return _engine(connect_query_only, "BEGIN", connections=connections)


def _engine(creator: Callable[[], sqlite3.Connection], begin: str, *, connections: int) -> sa.Engine:
    engine = sa.create_engine(
        "sqlite://", creator=creator, poolclass=sa.QueuePool, pool_size=connections, json_serializer=dump_json
    )
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(begin))
    return engine
