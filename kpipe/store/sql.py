"""The few places where SQLite and Postgres speak differently, and the values that both must accept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

Time = sa.DateTime(timezone=True)
Value = None | bool | int | float | str | bytes
"""What a query by hand gives on both databases: times are UTC text, JSON is text."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Text(sa.TypeDecorator[str]):
    """Text that is cleaned on its way in, so that nothing said by a model can fail a transaction."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else clean(value)


_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now'"


class now(FunctionElement[Any]):
    """The database's clock, UTC, to the millisecond."""

    type = Time
    inherit_cache = True


class later(FunctionElement[Any]):
    """``later(seconds)``: the database's clock, so many seconds from now."""

    type = Time
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **kw: Any) -> str:
    return f"{_SQLITE_NOW})"


@compiles(now, "postgresql")
def _now_postgres(element: now, compiler: Any, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: Any, **kw: Any) -> str:
    return f"{_SQLITE_NOW}, printf('%+.3f seconds', {compiler.process(element.clauses, **kw)}))"


@compiles(later, "postgresql")
def _later_postgres(element: later, compiler: Any, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


def after(seconds: float) -> later:
    """So many seconds from now, as a value to bind."""
    return later(sa.literal(float(seconds), sa.Double))


def word(text: str) -> ColumnElement[str]:
    """A literal in the statement itself: a bind parameter would hide it from the partial indexes."""
    return sa.literal_column(f"'{text}'", sa.Text)


def fetch(conn: sa.Connection, query: sa.Executable, **values: Any) -> list[Any]:
    """All rows of a query, for the constructor of a record."""
    return list(conn.execute(query, values))


def fetch_one(conn: sa.Connection, query: sa.Executable, **values: Any) -> Any:
    """The one row, or None."""
    return conn.execute(query, values).one_or_none()


def insert(dialect: str, table: sa.Table) -> Any:
    """INSERT of this dialect, for ON CONFLICT."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgres_insert

        return postgres_insert(table)
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert

    return sqlite_insert(table)


def add_if_new(conn: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> int | None:
    """Insert a row; its id, or None when a row with the same key is there already."""
    new: int | None = conn.execute(
        _if_new(conn.dialect.name, table).returning(table.c.id), row
    ).scalar_one_or_none()
    return new


def add_all_new(conn: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows whose key is not there yet."""
    if rows:
        conn.execute(_if_new(conn.dialect.name, table), rows)


@cache
def _if_new(dialect: str, table: sa.Table) -> Any:
    return insert(dialect, table).on_conflict_do_nothing()


def clean(text: str) -> str:
    """NUL and lone surrogates, which no database text can hold, become U+FFFD."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def plain(value: Any) -> Value:
    """What Postgres' driver gives, as SQLite says it."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime():
            utc = value.astimezone(UTC) if value.tzinfo else value
            return utc.replace(tzinfo=None).isoformat(" ", "milliseconds")
        case dict() | list():
            return dump_json(value)
        case memoryview():
            return bytes(value)
        case None | bool() | int() | float() | str() | bytes():
            return value
        case _:
            return str(value)


def dump_json(value: Any) -> str:
    """JSON that both databases take: numbers that are not finite become null, text is cleaned."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
