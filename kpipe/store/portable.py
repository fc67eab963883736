"""Tables as plain rows, the same from SQLite and Postgres: what copies, exports and digests are made of.

Times are aware and in UTC, JSON is what it says, and a number is what both databases can keep: -0.0 is 0.0,
NaN is NULL. A digest is the SHA-256 of JSON lines, so `sha256sum` can check it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from kpipe.errors import StoreError
from kpipe.store import belongings
from kpipe.store.models import metadata
from kpipe.store.sql import Text

Kind: TypeAlias = Literal[
    "integer", "number", "text", "time", "json", "bytes", "integers", "float32s", "records"
]
Row: TypeAlias = tuple[Any, ...]

BATCH = 500
"""Rows that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of an exported file. The last three kinds are lists; `fields` are those of 'records'."""

    name: str
    kind: Kind
    fields: tuple[Field, ...] = ()


def tables() -> list[str]:
    """All tables, each after those that it refers to."""
    return [table.name for table in metadata.sorted_tables]


@cache
def fields(table: str) -> tuple[Field, ...]:
    return tuple(Field(column.name, _kind(column)) for column in metadata.tables[table].columns)


def rows(conn: sa.Connection, table: str, runs: Sequence[int] | None = None) -> Iterator[list[Row]]:
    """Rows by primary key, in batches: all of them, or those that belong to the runs."""
    source = metadata.tables[table]
    query = sa.select(source).order_by(*(_bytewise(conn, key) for key in source.primary_key))
    if runs is not None:
        query = query.where(belongings.of(table, runs))
    return normalised(stream(conn, query), fields(table))


def normalised(batches: Iterable[Sequence[sa.Row[Any]]], columns: Sequence[Field]) -> Iterator[list[Row]]:
    """Rows with values that do not depend on the database."""
    converters = [(i, _LOGICAL[f.kind]) for i, f in enumerate(columns) if f.kind in _LOGICAL]
    for batch in batches:
        yield [_converted(row, converters) for row in batch]


def stream(conn: sa.Connection, query: sa.Executable) -> Iterator[Sequence[sa.Row[Any]]]:
    """Rows in batches: a database may be larger than memory."""
    return conn.execute(query, execution_options={"yield_per": BATCH}).partitions()


def line(columns: Sequence[Field], row: Row) -> bytes:
    """The row as a line of JSON. Floats are written so that they are read back bit for bit."""
    named = {field.name: value for field, value in zip(columns, row, strict=True)}
    return json_text(named).encode() + b"\n"


def json_text(value: Any) -> str:
    """JSON without blanks; times in ISO 8601, bytes in Base64."""
    return json.dumps(value, default=_spelled, ensure_ascii=False, separators=(",", ":"))


def digest(conn: sa.Connection) -> str:
    """SHA-256 of all rows of all tables as JSON lines, in the order of `tables` and of primary keys."""
    return digest_of(
        line(fields(table), row) for table in tables() for batch in rows(conn, table) for row in batch
    )


def digest_of(lines: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for each in lines:
        sha.update(each)
    return sha.hexdigest()


def insert(conn: sa.Connection, table: str, batch: Sequence[Row]) -> None:
    """Add rows as `rows` gives them, ids included."""
    if batch:
        names = [f"new_{field.name}" for field in fields(table)]
        conn.execute(_insert(table), [dict(zip(names, row, strict=True)) for row in batch])


def go_on_counting(conn: sa.Connection) -> None:
    """After rows came with their ids: the next id is a new one. SQLite looks at its rows by itself."""
    if conn.dialect.name != "postgresql":
        return
    for table in metadata.sorted_tables:
        if (sequence := sequence_of(conn, table.name)) is not None:
            newest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
            conn.execute(
                sa.select(sa.func.setval(sequence, sa.func.coalesce(newest, 1), newest.is_not(None)))
            )


def sequence_of(conn: sa.Connection, table: str) -> str | None:
    """The Postgres sequence that gives this table its ids, if one does."""
    if "id" not in metadata.tables[table].columns:
        return None
    found: str | None = conn.execute(sa.select(sa.func.pg_get_serial_sequence(table, "id"))).scalar_one()
    return found


def check_empty(conn: sa.Connection, name: str) -> None:
    """Raises StoreError when any table of the database called `name` has a row."""
    for table in metadata.sorted_tables:
        if conn.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
            raise StoreError(
                f"{name} is not empty: table {table.name} has rows.",
                "Name a new database; nothing is ever overwritten.",
            )


def _bytewise(conn: sa.Connection, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Order as SQLite sorts: Postgres would ask the language of the server."""
    postgres_text = conn.dialect.name == "postgresql" and _kind(column) == "text"
    return sa.collate(column, "C") if postgres_text else column


@cache
def _insert(table: str) -> sa.Insert:
    """None in a JSON column is NULL, not JSON's null."""
    target = metadata.tables[table]
    json_type = sa.JSON(none_as_null=True)
    values = {
        c.name: sa.bindparam(f"new_{c.name}", type_=json_type if isinstance(c.type, sa.JSON) else c.type)
        for c in target.columns
    }
    return target.insert().values(values)


def _kind(column: sa.Column[Any]) -> Kind:
    kind = kind_of(column.type)
    assert kind is not None, column
    return kind


def kind_of(type_: sa.types.TypeEngine[Any]) -> Kind | None:
    """None for a type that tables of kpipe do not have, but the expressions of a view may."""
    return next((kind for known, kind in _KINDS.items() if isinstance(type_, known)), None)


def _converted(row: sa.Row[Any], converters: Sequence[tuple[int, Callable[[Any], Any]]]) -> Row:
    values = list(row)
    for i, convert in converters:
        if values[i] is not None:
            values[i] = convert(values[i])
    return tuple(values)


def _time(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value) + 0.0


_KINDS: dict[type[Any], Kind] = {
    sa.Integer: "integer",
    sa.Double: "number",
    sa.DateTime: "time",
    sa.JSON: "json",
    sa.LargeBinary: "bytes",
    sa.Text: "text",
    Text: "text",
}
_LOGICAL: dict[str, Callable[[Any], Any]] = {"time": _time, "number": _number}


def _spelled(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no place in a database of kpipe")
