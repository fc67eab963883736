"""The journal: what happened, written in the transaction in which it happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.store.models import event


def log(
    conn: sa.Connection,
    kind: str,
    subject: str,
    subject_id: int | None,
    actor: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """`subject` is a table's name ('run', 'group', 'evaluation'), `actor` the stage that did it."""
    row = {
        "kind": kind,
        "subject": subject,
        "subject_id": subject_id,
        "actor": actor,
        "detail": dict(detail or {}),
    }
    conn.execute(event.insert(), row)


def newest(conn: sa.Connection, kind: str, subject: str, subject_ids: Sequence[int] | None = None) -> int:
    """Id of the newest such event, of these subjects or of any; 0 when there is none."""
    same = [event.c.kind == kind, event.c.subject == subject]
    if subject_ids is not None:
        same.append(event.c.subject_id.in_(subject_ids))
    return int(
        conn.execute(sa.select(sa.func.coalesce(sa.func.max(event.c.id), 0)).where(*same)).scalar_one()
    )


def details(conn: sa.Connection, kind: str, subject: str, subject_id: int) -> list[dict[str, Any]]:
    """What was written down of such events, oldest first."""
    same = (event.c.kind == kind, event.c.subject == subject, event.c.subject_id == subject_id)
    return list(conn.execute(sa.select(event.c.detail).where(*same).order_by(event.c.id)).scalars())
