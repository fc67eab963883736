"""Policy versions: step 0 is the base model, step n what update n made. Each is its checkpoint's record."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kpipe.store.models import policy_version as version
from kpipe.store.records import PolicyVersion
from kpipe.store.sql import add_if_new, fetch, fetch_one

_ROW = sa.select(version.c.id, version.c.run_id, version.c.step, version.c.path, version.c.digest)


def add(conn: sa.Connection, run_id: int, step: int, path: str, digest: str) -> PolicyVersion:
    """Record a version; when there is one for this step already, that one is returned and stays as it is."""
    add_if_new(conn, version, {"run_id": run_id, "step": step, "path": path, "digest": digest})
    return PolicyVersion(*fetch_one(conn, _of(run_id, step)))


def get(conn: sa.Connection, run_id: int, step: int) -> PolicyVersion | None:
    row = fetch_one(conn, _of(run_id, step))
    return PolicyVersion(*row) if row else None


def latest(conn: sa.Connection, run_id: int) -> PolicyVersion | None:
    query = _ROW.where(version.c.run_id == run_id).order_by(version.c.step.desc()).limit(1)
    row = fetch_one(conn, query)
    return PolicyVersion(*row) if row else None


def list_(conn: sa.Connection, run_id: int) -> list[PolicyVersion]:
    """All versions of a run by step."""
    query = _ROW.where(version.c.run_id == run_id).order_by(version.c.step)
    return [PolicyVersion(*row) for row in fetch(conn, query)]


def _of(run_id: int, step: int) -> sa.Select[Any]:
    return _ROW.where(version.c.run_id == run_id, version.c.step == step)
