"""Text that is stored once, under the digest of what is stored: kernels, prompts, replies, logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import sqlalchemy as sa

from kpipe.errors import StoreError
from kpipe.store.models import blob
from kpipe.store.sql import add_all_new, clean


def digest(text: str) -> str:
    """Address of `text` as it is stored."""
    return _sha(clean(text))


def put(conn: sa.Connection, text: str) -> str:
    """Store `text` if it is new; its address. NUL and lone surrogates become U+FFFD first."""
    return put_all(conn, (text,))[text]


def put_all(conn: sa.Connection, texts: Iterable[str]) -> dict[str, str]:
    """The address of each text. Sorted, so that no two writers wait in a circle."""
    bodies = {text: clean(text) for text in texts}
    addresses = {text: _sha(body) for text, body in bodies.items()}
    rows = {addresses[text]: body for text, body in bodies.items()}
    add_all_new(conn, blob, [{"sha": sha, "body": rows[sha]} for sha in sorted(rows)])
    return addresses


def get(conn: sa.Connection, sha: str) -> str:
    """Raises StoreError for an unknown address."""
    body = conn.execute(sa.select(blob.c.body).where(blob.c.sha == sha)).scalar_one_or_none()
    if body is None:
        raise StoreError(f"No text is stored under {sha}.", "Give a full digest from the database.")
    return str(body)


def _sha(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
