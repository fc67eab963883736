"""What a run paid for its coder, and what its calls on their way may cost: one sum over all of its processes.

A request is reserved before it is sent, with what it can cost at most; the transaction that stores its answer
turns that into what it did cost. A reservation whose process died stays, and so do its dollars, until the same
request is made again: it may have been billed.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from kpipe.store.models import coder_payment, run
from kpipe.store.sql import fetch, insert

_p = coder_payment.c
_RESERVED = _p.reserved_usd > sa.literal_column("0")
"""Zero is in the statement itself: a bind parameter would hide it from the partial index."""


@dataclass(frozen=True, slots=True)
class Account:
    """Dollars `paid` and `reserved`; `keys` are the requests for which something is reserved."""

    paid: float
    reserved: float
    keys: frozenset[str]


def account(conn: sa.Connection, run_id: int, without: str = "") -> Account:
    """What the run has paid and reserved, `without` one request."""
    sums = sa.select(sa.func.coalesce(sa.func.sum(_p.paid_usd), 0.0)).where(_p.run_id == run_id)
    open_ = sa.select(_p.key_sha, _p.reserved_usd).where(
        _p.run_id == run_id, _RESERVED, _p.key_sha != without
    )
    reserved: dict[str, float] = dict(fetch(conn, open_))
    return Account(float(conn.execute(sums).scalar_one()), sum(reserved.values()), frozenset(reserved))


def reserve(conn: sa.Connection, run_id: int, key: str, usd: float, max_usd: float | None) -> Account | None:
    """Set `usd` aside for this request: None; or the account that has no room for it below `max_usd`."""
    conn.execute(sa.select(run.c.id).where(run.c.id == run_id).with_for_update(key_share=True)).scalar_one()
    if max_usd is not None:
        now = account(conn, run_id, key)
        if now.paid + now.reserved + usd > max_usd:
            return now
    statement = insert(conn.dialect.name, coder_payment).values(
        run_id=run_id, key_sha=key, paid_usd=0.0, reserved_usd=usd
    )
    conn.execute(
        statement.on_conflict_do_update(
            index_elements=["run_id", "key_sha"], set_={"reserved_usd": statement.excluded.reserved_usd}
        )
    )
    return None


def release(conn: sa.Connection, run_id: int, key: str) -> None:
    """Nothing was paid for this request."""
    mine = (_p.run_id == run_id, _p.key_sha == key)
    conn.execute(coder_payment.update().where(*mine).values(reserved_usd=0.0))


def settle(conn: sa.Connection, key: str, usd: float) -> None:
    """The request was answered, or failed, and cost this much: paid by whoever had reserved it."""
    conn.execute(
        coder_payment.update()
        .where(_p.key_sha == key, _RESERVED)
        .values(paid_usd=_p.paid_usd + usd, reserved_usd=0.0)
    )
