"""Outcomes and rewards of settled turns: read for another formula, and replaced with the old ones kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.domain.verdict import Outcome
from kpipe.store import events
from kpipe.store.models import evaluation, finding, problem, rollout_group, train_sample, trajectory, turn
from kpipe.store.records import JudgedTurn, SampleChange, TurnChange
from kpipe.store.sql import fetch

PER_EVENT = 1000
"""Turns whose old values go into one event."""

_DIGEST = re.compile(r"[0-9a-f]{8,64}")

_JUDGED = (
    sa.select(
        turn.c.id,
        trajectory.c.id,
        rollout_group.c.id,
        rollout_group.c.run_id,
        problem.c.name,
        rollout_group.c.ordinal,
        trajectory.c.member,
        turn.c.ordinal,
        turn.c.kernel_sha,
        turn.c.evaluation_id,
        turn.c.outcome,
        evaluation.c.speedup,
        evaluation.c.speedup_low,
        turn.c.reward,
    )
    .join_from(turn, trajectory)
    .join(rollout_group)
    .join(problem, rollout_group.c.problem_id == problem.c.id)
    .outerjoin(evaluation, turn.c.evaluation_id == evaluation.c.id)
    .where(turn.c.state == "settled")
    .order_by(rollout_group.c.run_id, rollout_group.c.ordinal, trajectory.c.member, turn.c.ordinal)
)


def judged_groups(conn: sa.Connection, groups: Sequence[int]) -> list[JudgedTurn]:
    """Settled turns of these groups, by group, member and turn."""
    return _rows(conn, _JUDGED.where(rollout_group.c.id.in_(groups)))


def judged_run(conn: sa.Connection, run_id: int) -> list[JudgedTurn]:
    """Settled turns of a run, by group, member and turn."""
    return _rows(conn, _JUDGED.where(rollout_group.c.run_id == run_id))


def _rows(conn: sa.Connection, query: sa.Select[Any]) -> list[JudgedTurn]:
    return [JudgedTurn(*row) for row in fetch(conn, query)]


def rules(conn: sa.Connection) -> list[str]:
    """Every rule that has found something."""
    return list(conn.execute(sa.select(finding.c.rule).distinct().order_by(finding.c.rule)).scalars())


def kernels_meant(conn: sa.Connection, what: str) -> set[str]:
    """Digests of the evaluated kernels with a finding of rule `what`, or whose digest begins with it."""
    by_rule = (
        sa.select(evaluation.c.kernel_sha)
        .join_from(evaluation, finding, finding.c.evaluation_id == evaluation.c.id)
        .where(finding.c.rule == what)
    )
    found = set(conn.execute(by_rule).scalars())
    if _DIGEST.fullmatch(what):
        by_digest = sa.select(evaluation.c.kernel_sha).where(evaluation.c.kernel_sha.startswith(what))
        found |= set(conn.execute(by_digest).scalars())
    return found


def rescore(
    conn: sa.Connection,
    formula: str,
    changes: Sequence[TurnChange],
    samples: Sequence[SampleChange],
    run_ids: Sequence[int],
) -> None:
    """Replace outcomes, rewards, returns and advantages; events 'rescored' of each run keep the old values.

    `run_ids` are the runs that played or trained one of these turns.
    """
    for c in changes:
        conn.execute(turn.update().where(turn.c.id == c.turn.id).values(outcome=c.outcome, reward=c.reward))
    key = (train_sample.c.run_id == sa.bindparam("run"), train_sample.c.turn_id == sa.bindparam("turn"))
    values: dict[str, Any] = {
        "return": sa.bindparam("new_return"),
        "advantage": sa.bindparam("new_advantage"),
    }
    new = [
        {"run": s.run_id, "turn": s.turn_id, "new_return": s.after[0], "new_advantage": s.after[1]}
        for s in samples
    ]
    if new:
        conn.execute(train_sample.update().where(*key).values(values), new)
    for run_id in sorted(run_ids):
        _keep_old(conn, run_id, formula, changes, samples)


def mark_hacks(conn: sa.Connection, rule: str, kernels: Collection[str]) -> int:
    """Verdicts on these kernels become hacks, with a finding of `rule`; their numbers stay. How many.

    A kernel that did not load or was not judged stays what it is. Events keep the old outcomes.
    """
    e = evaluation.c
    judged = sa.select(e.id, e.outcome).where(e.kernel_sha.in_(kernels), e.state == "done").order_by(e.id)
    marked = [(job, before) for job, before in fetch(conn, judged) if may_be_hack(before)]
    message = "Found to be a hack after it was judged (kpipe replay score --invalidate)."
    for job, before in marked:
        conn.execute(evaluation.update().where(e.id == job).values(outcome=Outcome.HACK.value))
        row = {"evaluation_id": job, "rule": rule, "severity": "error", "message": message}
        conn.execute(finding.insert(), row)
        detail = {"before": before, "rule": rule}
        events.log(conn, "evaluation_invalidated", "evaluation", job, "replay", detail)
    return len(marked)


def may_be_hack(outcome: str | None) -> bool:
    """True for a kernel that ran and was not called a hack already."""
    kept = (None, Outcome.HACK, Outcome.UNCHANGED)
    return outcome not in kept and Outcome(outcome or "").compiled


def _keep_old(
    conn: sa.Connection,
    run_id: int,
    formula: str,
    changes: Sequence[TurnChange],
    samples: Sequence[SampleChange],
) -> None:
    """In parts, so that no event is larger than people's tools can show."""
    turns = [
        [c.turn.id, [c.turn.outcome, c.turn.reward], [c.outcome, c.reward]]
        for c in changes
        if c.turn.run_id == run_id
    ]
    trained = [[s.turn_id, list(s.before), list(s.after)] for s in samples if s.run_id == run_id]
    for i in range(0, max(len(turns), len(trained), 1), PER_EVENT):
        part = slice(i, i + PER_EVENT)
        detail = {"formula": formula, "turns": turns[part], "samples": trained[part]}
        events.log(conn, "rescored", "run", run_id, "replay", detail)
