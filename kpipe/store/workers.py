"""Who is at work, for `kpipe ps` and the live page. Nothing correct depends on it: leases decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from kpipe.store.models import worker
from kpipe.store.sql import now


def register(conn: sa.Connection, stage: str, host: str, pid: int, device: str) -> int:
    """The new worker's id."""
    row = {"stage": stage, "host": host, "pid": pid, "device": device, "status": {}}
    worker_id: int = conn.execute(worker.insert().returning(worker.c.id), row).scalar_one()
    return worker_id


def heartbeat(conn: sa.Connection, worker_id: int, status: Mapping[str, Any]) -> None:
    conn.execute(worker.update().where(worker.c.id == worker_id).values(seen_at=now(), status=dict(status)))


def list_(conn: sa.Connection) -> list[dict[str, Any]]:
    """Every worker ever registered, newest first, as columns by name."""
    return [dict(row) for row in conn.execute(sa.select(worker).order_by(worker.c.id.desc())).mappings()]
