"""`Database`: runs the store's functions in transactions, from threads or from an event loop.

SQLite has one writer thread and a few reader threads; Postgres a small pool of both. A transaction lasts
exactly one call, so no lock is ever held while somebody thinks or awaits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from kpipe.errors import StoreError, StoreLost
from kpipe.store import schema, sqlite
from kpipe.store.failures import BAD_OPTION, DEADLOCKS, explained, is_lost, sqlstate
from kpipe.store.sql import dump_json

P = ParamSpec("P")
T = TypeVar("T")

READERS = 4
POSTGRES_WRITERS = 4
TRIES = 5
"""How often a transaction that Postgres chose as the victim of a deadlock is run again."""
PATIENCE_S, RETRY_S = 60.0, 0.25
"""How long a server that was there may be away, for a restart, and how often it is looked for."""
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class Database:
    """One database, shared by all threads of a process. Not for use across a fork."""

    def __init__(self, name: str, writer: sa.Engine, reader: sa.Engine, gate: sqlite.Gate | None) -> None:
        self.name = name  # as it was typed, without a password
        self.path = gate.database if gate else None
        self.dialect = writer.dialect.name
        self._writer, self._reader, self._gate = writer, reader, gate
        self._patience_s = 0.0
        self._writes = ThreadPoolExecutor(1 if gate else POSTGRES_WRITERS, "kpipe-store-write")
        self._reads = ThreadPoolExecutor(READERS, "kpipe-store-read")

    @classmethod
    def open(cls, url: str, *, create: bool = False) -> Database:
        """Open ``sqlite:///PATH`` or ``postgresql://...``; `create` makes or upgrades it.

        Raises StoreError, and SchemaError for a schema that is missing, older, newer or not ours.
        """
        db = cls.connect(url, create=create)
        try:
            revision = db.read(schema.current)
            if create and revision != schema.revisions()[-1]:
                schema.check_known(revision)
                db.upgrade()
                revision = db.read(schema.current)
            schema.check_current(revision)
        except BaseException:
            db.close()
            raise
        db._patience_s = PATIENCE_S
        return db

    @classmethod
    def connect(cls, url: str, *, create: bool = False) -> Database:
        """Like `open`, but whatever the schema is. Raises StoreError."""
        parsed = parse_url(url)
        if parsed.get_backend_name() == "postgresql":
            return cls(*_postgres(parsed))
        name = parsed.database or ""
        sqlite.inspect_file(Path(name), create=create)
        path = Path(name).absolute()
        with explained(name):
            gate = sqlite.Gate(path)
            sqlite.set_up(gate, create=create)
        return cls(name, sqlite.writer(path), sqlite.reader(path, READERS), gate)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in a transaction that sees one state and cannot write. Raises StoreError."""
        return self._reads.submit(self._run_read, fn, args, kwargs).result()

    def write(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in a transaction: committed when it returns, undone when it raises.

        Raises StoreError, and StoreLost when the server went away during the commit: nobody knows then.
        """
        return self._writes.submit(self._run_write, fn, args, kwargs).result()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection like that of `read`, in the caller's own thread: for answers that are streamed."""
        with explained(self.name), self._reader.connect() as conn:
            yield conn

    async def aread(
        self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`read`, without blocking the event loop."""
        return await asyncio.wrap_future(self._reads.submit(self._run_read, fn, args, kwargs))

    async def awrite(
        self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`write`, without blocking the event loop. A cancelled caller does not undo what has begun."""
        return await asyncio.wrap_future(self._writes.submit(self._run_write, fn, args, kwargs))

    def upgrade(self) -> bool:
        """Bring the schema to the newest revision, in one transaction; False when it was there.

        The views are made again in any case. Raises StoreError, SchemaError.
        """
        from kpipe.store import migrate

        with explained(self.name), self._alone():
            return migrate.upgrade(self._writer)

    def check(self) -> str:
        """The schema's revision, when it is the newest and without any difference. Raises SchemaError."""
        from kpipe.store import drift

        with explained(self.name):
            drift.check(self._writer)
        return schema.revisions()[-1]

    def close(self) -> None:
        """Wait for what runs, then let go of every connection."""
        for threads in (self._writes, self._reads):
            threads.shutdown(wait=True)
        for engine in (self._writer, self._reader):
            engine.dispose()
        if self._gate:
            self._gate.close()

    def _alone(self) -> AbstractContextManager[None]:
        return self._gate() if self._gate else nullcontext()

    def _run_read(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        def attempt() -> T:
            with self._reader.connect() as conn:
                return fn(conn, *args, **kwargs)

        return self._patiently(attempt)

    def _run_write(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        def attempt() -> T:
            with self._alone(), self._writer.connect() as conn:
                conn.begin()
                result = fn(conn, *args, **kwargs)
                try:
                    conn.commit()
                except DBAPIError as error:
                    if is_lost(error):
                        raise StoreLost(
                            f"The connection to {self.name} broke while something was written.",
                            "Type the command again: it finds out what was written and goes on.",
                        ) from error
                    raise
                return result

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Again after a deadlock, and while a server that was there is away."""
        deadline = None
        with explained(self.name):
            for number in count(1):
                try:
                    return attempt()
                except DBAPIError as error:
                    if sqlstate(error) in DEADLOCKS and number < TRIES:
                        time.sleep(0.01 * number)
                        continue
                    deadline = deadline or time.monotonic() + self._patience_s
                    if not is_lost(error) or time.monotonic() >= deadline:
                        raise
                    time.sleep(RETRY_S)
        raise AssertionError("unreachable")


def parse_url(url: str) -> sa.URL:
    """Raises StoreError for anything but a SQLite file or a Postgres database."""
    fix = "Use sqlite:///PATH or postgresql://USER@HOST/NAME."
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f"{_harmless(url)!r} is no database URL.", fix) from None
    kind = parsed.get_backend_name()
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("A database in memory cannot be shared between processes.", fix)
    if kind == "sqlite" and parsed.query:
        raise StoreError(f"kpipe takes no options in {_harmless(url)!r}.", fix)
    if kind == "sqlite" and (parsed.host or parsed.username or parsed.port):
        raise StoreError(f"{_harmless(url)!r} names a host, but SQLite is a file.", fix)
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"kpipe does not speak {kind}.", fix)
    if "@" in (parsed.host or ""):
        raise StoreError("The database URL has more than one '@'.", "Write those of a password as %40.")
    return parsed


def without_password(url: str) -> str:
    """The URL as it may be printed. Raises StoreError."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return url
    plain = parsed.set(drivername="postgresql").difference_update_query(_SECRETS)
    if plain == parsed and not plain.password:
        return url
    return plain.render_as_string(hide_password=True)


def _harmless(url: str) -> str:
    """What can be shown of text that may hold a password anywhere before an '@' or among the options."""
    _, at, after = url.rpartition("@")
    return ("..." if at else "") + at + after.partition("?")[0]


def _postgres(url: sa.URL) -> tuple[str, sa.Engine, sa.Engine, None]:
    name = without_password(url.render_as_string(hide_password=False))
    _check_options(url, name)
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=POSTGRES_WRITERS + READERS,
            pool_pre_ping=True,  # a restarted server costs nobody a transaction
            json_serializer=dump_json,
            connect_args={"options": "-c timezone=utc"},
        )
    except ArgumentError as error:
        raise StoreError(f"{name} is no address: {error}.", BAD_OPTION) from None
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return name, engine, reader, None


def _check_options(url: sa.URL, name: str) -> None:
    """Those of libpq only: SQLAlchemy hands others to Python's driver, where `autocommit` has a meaning."""
    from psycopg.pq import Conninfo  # only here: SQLite's users need not wait for it

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for option, value in url.query.items():
        if option not in known:
            raise StoreError(f"{name} has the option {option!r}, which Postgres does not know.", BAD_OPTION)
        if not isinstance(value, str) and option not in ("host", "port"):
            raise StoreError(f"{name} has the option {option!r} more than once.", BAD_OPTION)
