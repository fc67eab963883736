"""Fill an empty database, in one transaction: whatever goes wrong, and whenever, nothing is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError

from kpipe.errors import StoreError
from kpipe.store import portable, schema
from kpipe.store.database import Database
from kpipe.store.portable import Row

Source = Callable[[str], Iterator[Sequence[Row]]]
"""Rows of a table in batches."""


def open_target(url: str) -> Database:
    """The database to fill, made when it is not there. Raises StoreError, and unless it is empty."""
    db = Database.connect(url, create=True)
    try:
        if db.read(schema.current) is None:
            db.upgrade()
        schema.check_current(db.read(schema.current))
        db.read(portable.check_empty, db.name)
    except BaseException:
        db.close()
        raise
    return db


def copy(source: Database, target: Database) -> tuple[int, str]:
    """All rows of one database into the other, empty one; how many, and the digest of both.

    The source is seen as it was at the beginning. Raises StoreError.
    """

    def read_all(conn: sa.Connection) -> tuple[int, str]:
        return fill(target, lambda table: portable.rows(conn, table), portable.digest(conn))

    return source.read(read_all)


def fill(target: Database, source: Source, digest: str) -> tuple[int, str]:
    """Rows and digest of `target` when it holds what `source` gives. Raises StoreError."""
    return target.write(_fill, target.name, source, digest)


def _fill(conn: sa.Connection, name: str, source: Source, digest: str) -> tuple[int, str]:
    _lock(conn)
    portable.check_empty(conn, name)
    count = sum(_take(conn, table, source) for table in portable.tables())
    portable.go_on_counting(conn)
    if (found := portable.digest(conn)) != digest:
        raise StoreError(
            f"What arrived in {name} is not what was sent: digest {found[:12]} in place of {digest[:12]}.",
            "Nothing was kept. Check the source with `kpipe db verify`, and report this.",
        )
    return count, found


def _take(conn: sa.Connection, table: str, source: Source) -> int:
    count = 0
    for batch in source(table):
        try:
            portable.insert(conn, table, batch)
        except (IntegrityError, DataError) as error:
            raise StoreError(
                f"The rows of table {table} contradict a rule of the database: {str(error.orig).splitlines()[0]}.",
                "Nothing was kept. Check the source with `kpipe db verify`.",
            ) from None
        count += len(batch)
    return count


def _lock(conn: sa.Connection) -> None:
    """Nobody else begins to use a database that is being filled; SQLite has one writer in any case."""
    if conn.dialect.name == "postgresql":
        names = ", ".join(f'"{table}"' for table in portable.tables())
        conn.exec_driver_sql(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")
