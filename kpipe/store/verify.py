"""Is everything in the database what it claims to be: texts, token frames, what rows say of each other?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from kpipe.assets import asset
from kpipe.errors import StoreError
from kpipe.store import blobs, tokens
from kpipe.store.models import blob, evaluation, train_step, turn
from kpipe.store.models import tokens as tokens_table

BATCH = 500
SHOWN = 10


def verify(conn: sa.Connection) -> dict[str, int]:
    """How much of everything there is. Raises StoreError with all that is wrong."""
    found: dict[str, list[Any]] = {
        "complaints of the database engine": _engine_says(conn),
        "texts that are not what their digest says": _damaged_texts(conn),
        "token frames that cannot be read": _damaged_frames(conn),
    }
    for name, query in invariants().items():
        found[name] = list(conn.exec_driver_sql(query).scalars())
    if wrong := {name: ids for name, ids in found.items() if ids}:
        lines = (f"  {len(ids)} {name}: {', '.join(map(str, ids[:SHOWN]))}" for name, ids in wrong.items())
        raise StoreError(
            "The database contradicts itself:\n" + "\n".join(lines),
            "Restore a copy made by `kpipe db backup`, and report this.",
        )
    counted = {"texts": blob, "turns": turn, "evaluations": evaluation, "updates": train_step}
    return {
        name: conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        for name, table in counted.items()
    }


def invariants() -> dict[str, str]:
    """What must never be found, and the query that looks for it: the content of `verify.sql`."""
    statements = asset("store/verify.sql").read_text(encoding="utf-8").split(";\n")[:-1]
    named = (statement.rpartition("-- ")[2].partition("\n") for statement in statements)
    return {name: query for name, _, query in named}


def _engine_says(conn: sa.Connection) -> list[str]:
    if conn.dialect.name != "sqlite":
        return []  # Postgres keeps foreign keys and pages itself, always
    pages = [row[0] for row in conn.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
    return pages + [
        f"{row[0]} row {row[1]} refers to nothing" for row in conn.exec_driver_sql("PRAGMA foreign_key_check")
    ]


def _damaged_texts(conn: sa.Connection) -> list[str]:
    rows = _stream(conn, sa.select(blob.c.sha, blob.c.body))
    return [sha for sha, body in rows if blobs.digest(body) != sha]


def _damaged_frames(conn: sa.Connection) -> list[int]:
    k, damaged = tokens_table.c, []
    for turn_id, *frame in _stream(
        conn, sa.select(k.turn_id, k.codec, k.data, k.prompt_len, k.completion_len)
    ):
        try:
            tokens.decode(*frame)
        except StoreError:
            damaged.append(turn_id)
    return damaged


def _stream(conn: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Rows in batches: a database may be larger than memory."""
    return iter(conn.execution_options(yield_per=BATCH).execute(query))
