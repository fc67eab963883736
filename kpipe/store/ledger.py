"""Paid coder calls: cache and account book in one table."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from kpipe.store import blobs, payments
from kpipe.store.models import blob, coder_call
from kpipe.store.records import CoderCall
from kpipe.store.sql import fetch_one, insert

_SUMS = ("tokens_in", "tokens_out", "usd", "seconds", "attempts")
_ID = sa.select(coder_call.c.id, coder_call.c.reply_sha).where(coder_call.c.key_sha == sa.bindparam("key"))
_request, _reply = blob.alias("request"), blob.alias("reply")
_CALL = (
    sa.select(
        coder_call.c.key_sha,
        coder_call.c.model,
        _request.c.body,
        _reply.c.body,
        coder_call.c.error,
        *(coder_call.c[name] for name in _SUMS),
    )
    .join_from(coder_call, _request, coder_call.c.request_sha == _request.c.sha)
    .join(_reply, coder_call.c.reply_sha == _reply.c.sha)
    .where(coder_call.c.key_sha == sa.bindparam("key"))
)


def cached_call(conn: sa.Connection, key: str) -> CoderCall | None:
    """The answered call under this key. A call that failed is no answer: it may be made again."""
    row = fetch_one(conn, _CALL, key=key)
    return CoderCall(*row) if row else None


def texts(call: CoderCall | None) -> list[str]:
    """What of a call goes into blobs."""
    return [] if call is None else [call.request, *([] if call.reply is None else [call.reply])]


def record(conn: sa.Connection, call: CoderCall | None, addresses: dict[str, str]) -> int | None:
    """The call's row; `addresses` holds those of its texts.

    An answer takes the place of an earlier failure under the same key, and what both cost is added up.
    An answered call stays as it is: it came from here. A second answer to the same request, which two processes
    paid for at the same moment, is a row of its own.
    """
    if call is None:
        return None
    row = {
        "key_sha": call.key,
        "model": call.model,
        "request_sha": addresses[call.request],
        "reply_sha": None if call.reply is None else addresses[call.reply],
        "error": call.error,
        **{name: getattr(call, name) for name in _SUMS},
    }
    payments.settle(conn, call.key, call.usd)
    added: int | None = conn.execute(_upsert(conn.dialect.name), row).scalar_one_or_none()
    if added is not None:
        return added
    known, reply = conn.execute(_ID, {"key": call.key}).one()
    if row["reply_sha"] in (None, reply):
        return int(known)
    again = hashlib.sha256(f"{call.key} {row['reply_sha']}".encode()).hexdigest()
    return record(conn, replace(call, key=again), addresses)


def keep(conn: sa.Connection, call: CoderCall) -> None:
    """Record a call that belongs to no turn, with its texts."""
    record(conn, call, blobs.put_all(conn, texts(call)))


@cache
def _upsert(dialect: str) -> Any:
    statement = insert(dialect, coder_call)
    new = statement.excluded
    sums = {name: coder_call.c[name] + new[name] for name in _SUMS}
    return statement.on_conflict_do_update(
        index_elements=["key_sha"],
        set_={"reply_sha": new.reply_sha, "error": new.error, **sums},
        where=coder_call.c.reply_sha.is_(None),
    ).returning(coder_call.c.id)
