"""Several kernels for one suggestion: each sample's call, evaluation and result beside the turn.

A turn with samples stays 'suggested' until all have a result; then it takes over the chosen one.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from kpipe.store import blobs, ledger, queue
from kpipe.store.models import blob, turn_sample
from kpipe.store.records import CoderCall, SampleResult, StoredSample
from kpipe.store.rollouts import settle
from kpipe.store.sql import add_all_new, fetch

_s = turn_sample.c
_SAMPLES = (
    sa.select(_s.sample, blob.c.body, _s.evaluation_id, _s.outcome, _s.reward, _s.fault)
    .join_from(turn_sample, blob, _s.kernel_sha == blob.c.sha, isouter=True)
    .where(_s.turn_id == sa.bindparam("turn"))
    .order_by(_s.sample)
)


def of_turn(conn: sa.Connection, turn_id: int) -> list[StoredSample]:
    """Those that the coder has answered, in their order."""
    return [StoredSample(*row) for row in fetch(conn, _SAMPLES, turn=turn_id)]


def record(
    conn: sa.Connection,
    turn_id: int,
    sample: int,
    call: CoderCall | None,
    kernel: str | None,
    result: SampleResult | None,
    *,
    problem_id: int,
    harness: str,
    device: str,
) -> int | None:
    """Store the coder's answer. Without a `result` its kernel is queued: the evaluation's id.

    Repeating it is harmless.
    """
    addresses = blobs.put_all(conn, [*([] if kernel is None else [kernel]), *ledger.texts(call)])
    call_id = ledger.record(conn, call, addresses)
    sha = None if kernel is None else addresses[kernel]
    job = None
    if result is None and sha is not None:
        job = queue.enqueue(conn, problem_id, sha, harness, device)
    row = {
        "turn_id": turn_id,
        "sample": sample,
        "coder_call_id": call_id,
        "kernel_sha": sha,
        "evaluation_id": job,
        "chosen": 0,
        **_values(result),
    }
    add_all_new(conn, turn_sample, [row])
    return job


def settle_all(
    conn: sa.Connection,
    turn_id: int,
    results: Sequence[SampleResult],
    chosen: int,
    reward: float | None,
    *,
    last: bool,
) -> None:
    """Give the samples their `results`, in their order, and the turn its `reward` and what the chosen one has.

    Repeating it is harmless.
    """
    for sample, result in enumerate(results):
        mine = (_s.turn_id == turn_id, _s.sample == sample)
        values = {**_values(result), "chosen": int(sample == chosen)}
        conn.execute(turn_sample.update().where(*mine).values(values))
    own = sa.select(blob.c.body, _s.evaluation_id, _s.coder_call_id).where(
        _s.turn_id == turn_id, _s.sample == chosen
    )
    joined = turn_sample.outerjoin(blob, _s.kernel_sha == blob.c.sha)
    kernel, job, call_id = conn.execute(own.select_from(joined)).one()
    best = results[chosen]
    settle(
        conn,
        turn_id,
        reward=reward,
        outcome=best.outcome,
        fault=best.fault,
        kernel=kernel,
        call_id=call_id,
        evaluation_id=job,
        last=last,
    )


def _values(result: SampleResult | None) -> dict[str, object]:
    names = ("outcome", "reward", "fault")
    return {name: None if result is None else getattr(result, name) for name in names}
