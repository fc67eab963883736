"""One question in SQL, as a person typed it. The database itself refuses to change anything.

SQLite: the file is opened read-only, `query_only` is on, and an authorizer keeps other files away.
Postgres: a READ ONLY transaction, and the extended protocol, which takes exactly one statement and tells
the columns of its answer beforehand. One without columns (COPY, DO, SET, a write) is never executed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import sqlalchemy as sa

from kpipe.domain.near import near
from kpipe.errors import UsageError
from kpipe.store import sqlite
from kpipe.store.database import Database
from kpipe.store.failures import explain
from kpipe.store.sql import Value, plain

_ELSEWHERE = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
}
_REFUSED = {"SQLITE_AUTH", "SQLITE_READONLY", "25006"}
_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the keyboard: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`rows` come as the database finds them, so a big answer never lies in memory at once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Value, ...]]


@contextmanager
def ask(db: Database, sql: str) -> Iterator[Answer]:
    """The answer to one statement; read its rows inside the context.

    Values are the same on both databases: times are UTC text, JSON is text, numbers are int or float.
    Raises UsageError for a mistake in the statement or one that writes, StoreError for the database's troubles.
    """
    try:
        with _sqlite(db, sql) if db.path else _postgres(db, sql) as answer:
            yield answer
    except (sqlite3.Error, sqlite3.Warning, psycopg.Error) as error:
        raise _explained(db, error) from error


@contextmanager
def _sqlite(db: Database, sql: str) -> Iterator[Answer]:
    assert db.path is not None
    with closing(sqlite.connect(db.path, mode="ro")) as raw:
        raw.execute("PRAGMA query_only = ON")
        raw.set_authorizer(_only_this_file)
        raw.set_progress_handler(lambda: None, _STEPS)  # lets Ctrl-C through to a long query
        cursor = raw.execute(sql)
        if cursor.description is None:
            raise _no_question()
        yield Answer(tuple(c[0] for c in cursor.description), (tuple(row) for row in cursor))


def _only_this_file(action: int, first: str | None, *_: str | None) -> int:
    """No other file (VACUUM INTO attaches one), and no switch: writes to this one fail by themselves."""
    switch = action == sqlite3.SQLITE_PRAGMA and not (first or "").endswith(("_info", "_list"))
    return sqlite3.SQLITE_DENY if switch or action in _ELSEWHERE else sqlite3.SQLITE_OK


@contextmanager
def _postgres(db: Database, sql: str) -> Iterator[Answer]:
    with db.reading() as conn:
        conn.exec_driver_sql("SELECT 1")  # from the first query on, a transaction's mode is fixed
        raw = conn.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        if not (columns := _described(raw, sql)):
            raise _no_question()  # READ ONLY would let COPY ... TO PROGRAM through
        stream = cast("Generator[Any, None, None]", raw.cursor().stream(sql.encode()))
        with closing(stream) as rows:  # what a reader leaves unread is cancelled
            yield Answer(columns, (tuple(map(plain, row)) for row in rows))


def _described(raw: psycopg.Connection[Any], sql: str) -> tuple[str, ...]:
    """Columns of the answer, as Postgres tells them before it executes anything."""
    pg = raw.pgconn
    for result in (pg.prepare(b"", sql.encode()), pg.describe_prepared(b"")):
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
    return tuple((result.fname(i) or b"").decode() for i in range(result.nfields))


def _explained(db: Database, error: sqlite3.Error | sqlite3.Warning | psycopg.Error) -> BaseException:
    code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None) or ""
    if code in ("SQLITE_INTERRUPT", "57014"):
        return KeyboardInterrupt()
    if code in _REFUSED:
        return UsageError(
            f"The database refused the statement: {_reason(error)}.",
            "`kpipe sql` only reads: one SELECT, WITH, VALUES or EXPLAIN.",
        )
    return explain(error, db.name) or UsageError(
        f"The database does not accept the statement: {_reason(error)}.", _near(db, error)
    )


def _reason(error: Exception) -> str:
    """One line of what the database said."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return (primary or str(error)).strip().splitlines()[0].rstrip(".")


def _near(db: Database, error: Exception) -> str:
    """Tables, views and columns that are spelled almost like the one that does not exist."""
    missing = re.search(r'(?:no such (?:table|column): |relation "|column "?)([\w.]+)', _reason(error))
    if not missing:
        return "docs/sql.md has questions to start from."
    name = missing[1].rpartition(".")[2]
    return near(name, sorted(set(db.read(_names)))).strip() or "docs/sql.md lists the tables and views."


def _names(conn: sa.Connection) -> list[str]:
    """Of tables, views and their columns."""
    inspector = sa.inspect(conn)
    relations = [*inspector.get_table_names(), *inspector.get_view_names()]
    return relations + [c["name"] for relation in relations for c in inspector.get_columns(relation)]


def _no_question() -> UsageError:
    return UsageError(
        "The statement has no answer and was refused: `kpipe sql` is read-only.",
        "Ask with one SELECT, WITH, VALUES or EXPLAIN.",
    )
