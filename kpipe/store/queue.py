"""The evaluation queue: enqueue, claim under a lease, report, give back.

A lease is a token and a time by the database's clock. Whoever lets it run out can change nothing any
more, so a verdict is never written twice, and never by a worker that was frozen while it timed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from kpipe.domain.verdict import Finding, Outcome, Verdict
from kpipe.errors import LeaseLost
from kpipe.store import blobs, events
from kpipe.store.models import baseline, blob, evaluation, finding, problem
from kpipe.store.records import EvaluationJob, EvaluationResult
from kpipe.store.sql import after, clean, fetch, fetch_one, insert, later, now, word

_FREE: dict[str, Any] = {"worker_id": None, "lease": None, "lease_until": None}
_EMPTY: dict[str, Any] = {"outcome": None, "detail": sa.null(), "log_sha": None, "finished_at": None}
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
    )
    .join_from(evaluation, problem)
    .join(_reference, problem.c.reference_sha == _reference.c.sha)
    .join(_kernel, evaluation.c.kernel_sha == _kernel.c.sha)
    .where(evaluation.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(evaluation.c.rank, evaluation.c.id)
)


def enqueue(
    conn: sa.Connection,
    problem_id: int,
    kernel_sha: str,
    harness: str,
    device: str,
    round: int = 0,
    rank: int = 0,
) -> int:
    """The evaluation of this kernel: a new one, or the one that waits, runs or is done already.

    One that was given up is tried again: the machine was to blame, not the kernel. Lower ranks come first.
    """
    key = {
        "problem_id": problem_id,
        "kernel_sha": kernel_sha,
        "harness": harness,
        "device": device,
        "round": round,
    }
    fresh = {"state": "queued", "rank": rank, "attempt": 0, "failures": 0}
    statement = (
        insert(conn, evaluation)
        .values(**key, **fresh)
        .on_conflict_do_update(
            index_elements=list(key),
            set_={**fresh, **_FREE, **_EMPTY, "not_before": now(), "queued_at": now()},
            where=evaluation.c.state == "failed",
        )
        .returning(evaluation.c.id)
    )
    job: int | None = conn.execute(statement).scalar_one_or_none()
    if job is None:
        same = [evaluation.c[name] == value for name, value in key.items()]
        job = conn.execute(sa.select(evaluation.c.id).where(*same)).scalar_one()
    return job


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
    return [EvaluationJob(*row) for row in fetch(conn, _JOBS, ids=ids)] if ids else []


def renew(conn: sa.Connection, leases: Iterable[tuple[int, str]], lease_s: float) -> list[int]:
    """Keep these (id, lease) for `lease_s` more seconds; the ids of those that were lost."""
    held = [(job, _held(job, lease)) for job, lease in sorted(leases)]
    return [job for job, own in held if conn.execute(own.values(lease_until=after(lease_s))).rowcount == 0]


def report(conn: sa.Connection, job: int, lease: str, verdict: Verdict) -> None:
    """Store the verdict and its findings. An INFRA verdict fails the job. Raises LeaseLost."""
    infra = verdict.outcome is Outcome.INFRA
    statement = _held(job, lease).values(
        state="failed" if infra else "done",
        lease=None,
        lease_until=None,
        outcome=verdict.outcome.value,
        time_ms=verdict.time_ms,
        baseline_ms=verdict.baseline_ms,
        speedup=verdict.speedup,
        speedup_low=verdict.speedup_low,
        speedup_high=verdict.speedup_high,
        build_s=verdict.build_s,
        run_s=verdict.run_s,
        detail=verdict.detail,
        log_sha=blobs.put(conn, verdict.log) if verdict.log else None,
        finished_at=now(),
    )
    statement = statement.returning(evaluation.c.problem_id, evaluation.c.device, evaluation.c.harness)
    judged = fetch_one(conn, statement)
    if judged is None:
        raise _lost(job)
    if infra:
        events.log(conn, "evaluation_failed", "evaluation", job, "evaluate", {"reason": "infra verdict"})
        return
    _add_findings(conn, job, verdict.findings)
    if verdict.baseline_ms is not None:
        _add_baseline(conn, judged.problem_id, judged.device, judged.harness, verdict.baseline_ms)


def give_back(
    conn: sa.Connection, job: int, lease: str, *, reason: str, delay_s: float, max_attempts: int | None
) -> None:
    """The machine cannot judge this kernel now: let somebody try again in `delay_s` seconds.

    The `max_attempts`-th time fails the job; None does not count (a worker that is told to stop).
    Raises LeaseLost.
    """
    counted = evaluation.c.failures + (0 if max_attempts is None else 1)
    statement = _held(job, lease).values(state="queued", not_before=after(delay_s), failures=counted, **_FREE)
    failures = conn.execute(statement.returning(evaluation.c.failures)).scalar_one_or_none()
    if failures is None:
        raise _lost(job)
    events.log(conn, "evaluation_given_back", "evaluation", job, "evaluate", {"reason": reason})
    if max_attempts is not None and failures >= max_attempts:
        _fail(conn, job, reason)


def reap(conn: sa.Connection, max_attempts: int) -> int:
    """Requeue jobs whose lease ran out, and fail those that it happened to `max_attempts` times; how many."""
    e = evaluation
    expired = (
        sa.select(e.c.id, e.c.attempt, e.c.worker_id)
        .where(e.c.state == word("running"), e.c.lease_until <= now())
        .order_by(e.c.id)
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


def evaluations(conn: sa.Connection, ids: Sequence[int]) -> dict[int, EvaluationResult]:
    """State, and the verdict of those that are finished."""
    e = evaluation
    verdict = [e.c[name] for name in _VERDICT]
    query = sa.select(e.c.id, e.c.state, sa.func.coalesce(blob.c.body, "").label("log"), *verdict)
    query = query.outerjoin_from(e, blob, e.c.log_sha == blob.c.sha).where(e.c.id.in_(ids))
    rows = conn.execute(query).mappings().all()
    findings = _findings(conn, [row["id"] for row in rows if row["state"] == "done"])
    return {
        row["id"]: EvaluationResult(row["id"], row["state"], _verdict(row, findings.get(row["id"], ())))
        for row in rows
    }


_VERDICT = (
    *("outcome", "time_ms", "baseline_ms", "speedup", "speedup_low", "speedup_high"),
    *("build_s", "run_s", "detail"),
)


def _verdict(row: sa.RowMapping, findings: tuple[Finding, ...]) -> Verdict | None:
    if row["outcome"] is None:
        return None
    values = {name: row[name] for name in _VERDICT if row[name] is not None}
    values["outcome"] = Outcome(values["outcome"])
    return Verdict(**values, log=row["log"], findings=findings)


def _findings(conn: sa.Connection, jobs: Sequence[int]) -> dict[int, tuple[Finding, ...]]:
    if not jobs:
        return {}
    f = finding
    query = sa.select(f.c.evaluation_id, f.c.rule, f.c.severity, f.c.message, f.c.line)
    found: dict[int, tuple[Finding, ...]] = {}
    for job, *values in conn.execute(query.where(f.c.evaluation_id.in_(jobs)).order_by(f.c.id)):
        found[job] = (*found.get(job, ()), Finding(*values))
    return found


def _add_findings(conn: sa.Connection, job: int, findings: Sequence[Finding]) -> None:
    rows = [
        {
            "evaluation_id": job,
            "rule": f.rule,
            "severity": f.severity,
            "line": f.line,
            "message": clean(f.message),
        }
        for f in findings
    ]
    if rows:
        conn.execute(finding.insert(), rows)


def _add_baseline(conn: sa.Connection, problem_id: int, device: str, harness: str, time_ms: float) -> None:
    """Every evaluation times eager PyTorch as well: keep its mean and how far the readings lie from it."""
    key = {"problem_id": problem_id, "device": device, "harness": harness, "mode": "eager"}
    statement = insert(conn, baseline).values(**key, time_ms=time_ms, spread_ms=0.0, n=1)
    new, b, n = statement.excluded, baseline.c, baseline.c.n + 1
    mean = b.time_ms + (new.time_ms - b.time_ms) / n
    spread = b.spread_ms + (sa.func.abs(new.time_ms - b.time_ms) - b.spread_ms) / n
    changed = {"time_ms": mean, "spread_ms": spread, "n": n, "measured_at": now()}
    conn.execute(statement.on_conflict_do_update(index_elements=list(key), set_=changed))


def _fail(conn: sa.Connection, job: int, reason: str) -> None:
    values = {
        "state": "failed",
        "outcome": Outcome.INFRA.value,
        "finished_at": now(),
        "detail": {"reason": reason},
    }
    conn.execute(evaluation.update().where(evaluation.c.id == job).values(values))
    events.log(conn, "evaluation_failed", "evaluation", job, "evaluate", {"reason": reason})


def _held(job: int, lease: str) -> sa.Update:
    """UPDATE of a job whose lease is this one and has not run out."""
    e = evaluation
    return e.update().where(e.c.id == job, e.c.lease == lease, e.c.lease_until > now())


def _lost(job: int) -> LeaseLost:
    return LeaseLost(f"Evaluation {job} belongs to another worker now.", "Nothing to do: it is tried again.")
