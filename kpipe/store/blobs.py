"""Text that is stored once, under the digest of what is stored: kernels, prompts, replies, logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import sqlalchemy as sa

from kpipe.errors import StoreError
from kpipe.store.models import blob
from kpipe.store.sql import clean, insert


def digest(text: str) -> str:
    """Address of `text` as it is stored."""
    return hashlib.sha256(clean(text).encode()).hexdigest()


def put(conn: sa.Connection, text: str) -> str:
    """Store `text` if it is new; its address. NUL and lone surrogates become U+FFFD first."""
    return put_all(conn, (text,))[text]


def put_all(conn: sa.Connection, texts: Iterable[str]) -> dict[str, str]:
    """The address of each text. Sorted, so that no two writers wait in a circle."""
    bodies = {text: clean(text) for text in texts}
    addresses = {text: digest(body) for text, body in bodies.items()}
    rows = sorted({(addresses[text], body) for text, body in bodies.items()})
    if rows:
        statement = insert(conn, blob).on_conflict_do_nothing()
        conn.execute(statement, [{"sha": sha, "body": body} for sha, body in rows])
    return addresses


def get(conn: sa.Connection, sha: str) -> str:
    """Raises StoreError for an unknown address."""
    body = conn.execute(sa.select(blob.c.body).where(blob.c.sha == sha)).scalar_one_or_none()
    if body is None:
        raise StoreError(f"No text is stored under {sha}.", "Give a full digest from the database.")
    return str(body)
