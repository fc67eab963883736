"""The evaluation queue: enqueue, claim under a lease, report, give back.

A lease is a token and a time by the database's clock. Whoever lets it run out can change nothing any
more, so a verdict is never written twice, and never by a worker that was frozen while it timed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import LeaseLost
from kpipe.store import blobs, events, verdicts
from kpipe.store.models import blob, evaluation, problem
from kpipe.store.records import EvaluationJob
from kpipe.store.sql import after, fetch, fetch_one, insert, later, now, word

_KEY = ("problem_id", "kernel_sha", "harness", "device", "round")
_UNTRIED: dict[str, Any] = {"state": "queued", "attempt": 0, "failures": 0}
_FREE: dict[str, Any] = {"worker_id": None, "lease": None, "lease_until": None}
_UNJUDGED: dict[str, Any] = {"outcome": None, "detail": sa.null(), "log_sha": None, "finished_at": None}
_SAME = sa.select(evaluation.c.id).where(*(evaluation.c[name] == bindparam(name) for name in _KEY))
_queued = evaluation.alias("queued")
_CLAIM = (
    evaluation.update()
    .where(
        evaluation.c.id
        == sa.select(_queued.c.id)
        .where(
            _queued.c.state == word("queued"),
            _queued.c.device == bindparam("for_device"),
            _queued.c.not_before <= now(),
        )
        .order_by(_queued.c.rank, _queued.c.id)
        .limit(sa.literal_column("1"))
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    .values(
        state=word("running"),
        worker_id=bindparam("by"),
        lease=bindparam("token"),
        lease_until=later(bindparam("seconds", type_=sa.Double)),
    )
    .returning(evaluation.c.id)
)
_reference, _kernel = blob.alias("reference"), blob.alias("kernel")
_JOBS = (
    sa.select(
        evaluation.c.id,
        evaluation.c.lease,
        evaluation.c.problem_id,
        _reference.c.body,
        _kernel.c.body,
        evaluation.c.device,
        evaluation.c.harness,
        evaluation.c.attempt + evaluation.c.failures + 1,
        evaluation.c.detail,
    )
    .join_from(evaluation, problem)
    .join(_reference, problem.c.reference_sha == _reference.c.sha)
    .join(_kernel, evaluation.c.kernel_sha == _kernel.c.sha)
    .where(evaluation.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(evaluation.c.rank, evaluation.c.id)
)

# UPDATE of a job under its lease, as long as that has not run out.
_HELD = evaluation.update().where(
    evaluation.c.id == bindparam("job"),
    evaluation.c.lease == bindparam("token"),
    evaluation.c.lease_until > now(),
)
_RENEW = _HELD.values(lease_until=later(bindparam("seconds", type_=sa.Double)))
_REPORT = _HELD.values(finished_at=now()).returning(
    evaluation.c.problem_id, evaluation.c.device, evaluation.c.harness
)


def enqueue(
    conn: sa.Connection,
    problem_id: int,
    kernel_sha: str,
    harness: str,
    device: str,
    round: int = 0,
    rank: int = 0,
    seeds: Mapping[str, int] | None = None,
) -> int:
    """The evaluation of this kernel: a new one, or the one that waits, runs or is done already.

    One that was given up is tried again: the machine was to blame, not the kernel. Lower ranks come first.
    `seeds` of an earlier verdict ask for its inputs.
    """
    asked = {"detail": {"seeds": dict(seeds)}} if seeds else {}
    key = dict(zip(_KEY, (problem_id, kernel_sha, harness, device, round), strict=True))
    added: int | None = conn.execute(
        _enqueue(conn.dialect.name), {**key, **_UNTRIED, "rank": rank, **asked}
    ).scalar_one_or_none()
    return conn.execute(_SAME, key).scalar_one() if added is None else added


@cache
def _enqueue(dialect: str) -> Any:
    statement = insert(dialect, evaluation)
    times = {"not_before": now(), "queued_at": now()}
    return statement.on_conflict_do_update(
        index_elements=_KEY,
        set_={**_UNTRIED, **_FREE, **_UNJUDGED, **times, "rank": statement.excluded.rank},
        where=evaluation.c.state == "failed",
    ).returning(evaluation.c.id)


def claim(
    conn: sa.Connection, worker_id: int, device: str, lease_s: float, limit: int = 1
) -> list[EvaluationJob]:
    """At most `limit` waiting jobs for this kind of device, each leased for `lease_s` seconds."""
    ids: list[int] = []
    for _ in range(limit):
        values = {"for_device": device, "by": worker_id, "token": secrets.token_hex(8), "seconds": lease_s}
        claimed = conn.execute(_CLAIM, values).scalar_one_or_none()
        if claimed is None:
            break
        ids.append(claimed)
    return [_job(*row) for row in fetch(conn, _JOBS, ids=ids)] if ids else []


def _job(*row: Any) -> EvaluationJob:
    """Until there is a verdict, `detail` holds what the judge is asked for beside the usual."""
    *columns, asked = row
    return EvaluationJob(*(*columns, (asked or {}).get("seeds")))


def renew(conn: sa.Connection, leases: Iterable[tuple[int, str]], lease_s: float) -> list[int]:
    """Keep these (id, lease) for `lease_s` more seconds; the ids of those that were lost."""
    lost = []
    for job, lease in sorted(leases):
        if conn.execute(_RENEW, {"job": job, "token": lease, "seconds": lease_s}).rowcount == 0:
            lost.append(job)
    return lost


def report(conn: sa.Connection, job: int, lease: str, verdict: Verdict) -> None:
    """Store the verdict and its findings. An INFRA verdict fails the job. Raises LeaseLost."""
    infra = verdict.outcome is Outcome.INFRA
    row = {
        **{name: getattr(verdict, name) for name in verdicts.COLUMNS},
        **{"state": "failed" if infra else "done", "lease": None, "lease_until": None},
        "log_sha": blobs.put(conn, verdict.log) if verdict.log else None,
    }
    judged: tuple[int, str, str] | None = fetch_one(conn, _REPORT, job=job, token=lease, **row)
    if judged is None:
        raise _lost(job)
    if infra:
        events.log(conn, "evaluation_failed", "evaluation", job, "evaluate", {"reason": "infra verdict"})
        return
    verdicts.add_findings(conn, job, verdict.findings)
    if verdict.baseline_ms is not None:
        verdicts.add_baseline(conn, *judged, verdict.baseline_ms)


def give_back(
    conn: sa.Connection, job: int, lease: str, *, reason: str, delay_s: float, max_attempts: int | None
) -> None:
    """The machine cannot judge this kernel now: let somebody try again in `delay_s` seconds.

    The `max_attempts`-th time fails the job; None does not count (a worker that is told to stop).
    Raises LeaseLost.
    """
    counted = evaluation.c.failures + (0 if max_attempts is None else 1)
    freed = _HELD.values(state="queued", not_before=after(delay_s), failures=counted, **_FREE)
    row = fetch_one(conn, freed.returning(evaluation.c.failures), job=job, token=lease)
    if row is None:
        raise _lost(job)
    events.log(conn, "evaluation_given_back", "evaluation", job, "evaluate", {"reason": reason})
    if max_attempts is not None and row.failures >= max_attempts:
        _fail(conn, job, reason)


def reap(conn: sa.Connection, max_attempts: int) -> int:
    """Requeue jobs whose lease ran out, and fail those that it happened to `max_attempts` times; how many."""
    e = evaluation
    expired = (
        sa.select(e.c.id, e.c.attempt, e.c.worker_id)
        .where(e.c.state == word("running"), e.c.lease_until <= now())
        .order_by(e.c.lease_until, e.c.id)  # by id, SQLite would read the whole table in its order
        .with_for_update(skip_locked=True)
    )
    rows = conn.execute(expired).all()
    for job, attempt, worker_id in rows:
        conn.execute(e.update().where(e.c.id == job).values(state="queued", attempt=attempt + 1, **_FREE))
        events.log(
            conn, "lease_lost", "evaluation", job, "evaluate", {"worker": worker_id, "attempt": attempt + 1}
        )
        if attempt + 1 >= max_attempts:
            _fail(conn, job, "its workers died or stalled")
    return len(rows)


def depth(conn: sa.Connection) -> dict[str, int]:
    """How many evaluations are `queued` and `running`."""
    e = evaluation
    return {
        state: conn.execute(
            sa.select(sa.func.count()).select_from(e).where(e.c.state == word(state))
        ).scalar_one()
        for state in ("queued", "running")
    }


def _fail(conn: sa.Connection, job: int, reason: str) -> None:
    values = {
        "state": "failed",
        "outcome": Outcome.INFRA.value,
        "finished_at": now(),
        "detail": {"reason": reason},
    }
    conn.execute(evaluation.update().where(evaluation.c.id == job).values(values))
    events.log(conn, "evaluation_failed", "evaluation", job, "evaluate", {"reason": reason})


def _lost(job: int) -> LeaseLost:
    return LeaseLost(f"Evaluation {job} belongs to another worker now.", "Nothing to do: it is tried again.")
