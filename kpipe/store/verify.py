"""Is everything in the database what it claims to be: texts, token frames, what rows say of each other?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from kpipe.assets import asset
from kpipe.errors import StoreError
from kpipe.store import blobs, portable, tokens
from kpipe.store.models import blob, evaluation, train_sample, train_step, turn
from kpipe.store.models import tokens as tokens_table

BATCH = 500
SHOWN = 10


def verify(conn: sa.Connection) -> dict[str, int]:
    """How much of everything there is. Raises StoreError with all that is wrong."""
    found: dict[str, list[Any]] = {
        "complaints of the database engine": _engine_says(conn),
        "texts that are not what their digest says": _damaged_texts(conn),
        "token frames that cannot be read": _damaged_frames(conn),
        "updates that say another number of samples than they have": _miscounted_updates(conn),
        "tables that would give an id twice": _repeating_ids(conn),
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


def _miscounted_updates(conn: sa.Connection) -> list[str]:
    """The metrics of an update count what it was trained on, too."""
    s, t = train_step.c, train_sample.c
    trained = (
        sa.select(sa.func.count())
        .where(t.run_id == s.run_id, t.step == s.step, t.drop_reason.is_(None))
        .scalar_subquery()
    )
    rows = _stream(conn, sa.select(s.run_id, s.step, s.metrics, trained).order_by(s.run_id, s.step))
    return [
        f"run {run_id} step {step}" for run_id, step, said, n in rows if said.get("samples_trained", n) != n
    ]


def _repeating_ids(conn: sa.Connection) -> list[str]:
    """Postgres counts apart from the rows; SQLite looks at them."""
    if conn.dialect.name != "postgresql":
        return []
    return [table for table in portable.tables() if _repeats(conn, table)]


def _repeats(conn: sa.Connection, table: str) -> bool:
    if (sequence := portable.sequence_of(conn, table)) is None:
        return False
    query = f'SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END < (SELECT max(id) FROM "{table}") FROM {sequence}'  # noqa: S608 - names of our own
    return bool(conn.exec_driver_sql(query).scalar_one())


def _stream(conn: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Rows in batches: a database may be larger than memory."""
    return iter(conn.execution_options(yield_per=BATCH).execute(query))
