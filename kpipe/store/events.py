"""The journal: what happened, written in the transaction in which it happened."""

from __future__ import annotations

from collections.abc import Mapping
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
