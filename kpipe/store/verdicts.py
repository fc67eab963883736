"""What the evaluator said about a kernel: read back, with its findings; and what it learned by the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from kpipe.domain.verdict import Finding, Outcome, Verdict
from kpipe.store.models import baseline, blob, evaluation, finding
from kpipe.store.records import EvaluationResult
from kpipe.store.sql import fetch, insert, now

COLUMNS = (
    *("outcome", "time_ms", "baseline_ms", "speedup", "speedup_low", "speedup_high"),
    *("build_s", "run_s", "detail"),
)
_EVALUATIONS = (
    sa.select(
        evaluation.c.id, evaluation.c.state, blob.c.body.label("log"), *(evaluation.c[n] for n in COLUMNS)
    )
    .outerjoin_from(evaluation, blob, evaluation.c.log_sha == blob.c.sha)
    .where(evaluation.c.id.in_(bindparam("ids", expanding=True)))
)
_FINDINGS = (
    sa.select(finding.c.evaluation_id, finding.c.rule, finding.c.severity, finding.c.message, finding.c.line)
    .where(finding.c.evaluation_id.in_(bindparam("ids", expanding=True)))
    .order_by(finding.c.id)
)


def evaluations(conn: sa.Connection, ids: Sequence[int]) -> dict[int, EvaluationResult]:
    """State, and the verdict of those that are finished."""
    rows = conn.execute(_EVALUATIONS, {"ids": ids}).mappings().all()
    judged = [row["id"] for row in rows if row["state"] == "done"]
    findings: dict[int, tuple[Finding, ...]] = {}
    for job, *said in fetch(conn, _FINDINGS, ids=judged) if judged else ():
        findings[job] = (*findings.get(job, ()), Finding(*said))
    return {
        row["id"]: EvaluationResult(row["id"], row["state"], _verdict(row, findings.get(row["id"], ())))
        for row in rows
    }


def _verdict(row: sa.RowMapping, findings: tuple[Finding, ...]) -> Verdict | None:
    if row["outcome"] is None:
        return None
    known = {name: row[name] for name in COLUMNS if row[name] is not None}
    return Verdict(**known | {"outcome": Outcome(row["outcome"])}, log=row["log"] or "", findings=findings)


def add_findings(conn: sa.Connection, job: int, findings: Sequence[Finding]) -> None:
    rows = [
        {"evaluation_id": job, "rule": f.rule, "severity": f.severity, "line": f.line, "message": f.message}
        for f in findings
    ]
    if rows:
        conn.execute(finding.insert(), rows)


def add_baseline(conn: sa.Connection, problem_id: int, device: str, harness: str, time_ms: float) -> None:
    """Every evaluation times eager PyTorch as well: keep the mean, and how far the readings lie from it."""
    row = {"problem_id": problem_id, "device": device, "harness": harness, "mode": "eager"}
    conn.execute(_average(conn.dialect.name), {**row, "time_ms": time_ms, "spread_ms": 0.0, "n": 1})


@cache
def _average(dialect: str) -> Any:
    statement = insert(dialect, baseline)
    new, b, n = statement.excluded, baseline.c, baseline.c.n + 1
    mean = b.time_ms + (new.time_ms - b.time_ms) / n
    spread = b.spread_ms + (sa.func.abs(new.time_ms - b.time_ms) - b.spread_ms) / n
    changed = {"time_ms": mean, "spread_ms": spread, "n": n, "measured_at": now()}
    return statement.on_conflict_do_update(index_elements=baseline.primary_key.columns.keys(), set_=changed)
