"""Runs: a name, a configuration, a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.domain.names import check_run_name
from kpipe.errors import StoreError
from kpipe.store import events
from kpipe.store.models import run
from kpipe.store.records import Run
from kpipe.store.sql import add_if_new, plain

_ROW = sa.select(run.c.id, run.c.name, run.c.config, run.c.seed, run.c.code_version)


def create(conn: sa.Connection, name: str, config: Mapping[str, Any], seed: int, code_version: str) -> Run:
    """Raises StoreError when the name is taken, UsageError when it is none."""
    check_run_name(name)
    row = {"name": name, "config": dict(config), "seed": seed, "code_version": code_version}
    run_id = add_if_new(conn, run, row)
    if run_id is None:
        raise StoreError(f"There is a run {name!r} already.", "Resume it, or choose another name with --run.")
    events.log(conn, "run_created", "run", run_id, "store", {"name": name})
    return Run(run_id, name, dict(config), seed, code_version)


def get(conn: sa.Connection, name: str) -> Run | None:
    row = conn.execute(_ROW.where(run.c.name == name)).one_or_none()
    return Run(*row) if row else None


def list_(conn: sa.Connection) -> list[Run]:
    """All runs, oldest first."""
    return [Run(*row) for row in conn.execute(_ROW.order_by(run.c.id))]


def only(conn: sa.Connection) -> Run:
    """The one run of a database that has no other. Raises StoreError when there are none or several."""
    found = list_(conn)
    if len(found) != 1:
        names = ", ".join(r.name for r in found) or "none"
        raise StoreError(f"The database does not have exactly one run, but: {names}.", "Name one with --run.")
    return found[0]


def identity(conn: sa.Connection, run_id: int) -> str:
    """Its name and when it was made: the same in every copy of the database, and in no other."""
    name, made = conn.execute(sa.select(run.c.name, run.c.created_at).where(run.c.id == run_id)).one()
    return f"{name}, made {plain(made)!s}"


def lock(conn: sa.Connection, run_ids: Sequence[int]) -> None:
    """Until the transaction ends, nobody else gets these; on SQLite a writer is alone anyhow."""
    rows = sa.select(run.c.id).where(run.c.id.in_(run_ids)).order_by(run.c.id)
    conn.execute(rows.with_for_update(key_share=True)).all()


def update_config(conn: sa.Connection, run_id: int, config: Mapping[str, Any]) -> None:
    """Replace the stored configuration; the old one stays in the journal."""
    old = conn.execute(sa.select(run.c.config).where(run.c.id == run_id)).scalar_one()
    conn.execute(run.update().where(run.c.id == run_id).values(config=dict(config)))
    events.log(conn, "run_config_changed", "run", run_id, "store", {"before": old})
