"""Verdicts again: what a run's turns were judged by, and further rounds of the same kernels.

A round never touches a turn: the verdict that gave the reward stays the one of the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.store import events, queue
from kpipe.store.models import evaluation, problem, rollout_group, trajectory, turn
from kpipe.store.records import JudgedKernel
from kpipe.store.sql import fetch

LATER = 1
"""Rank of a job of a further round: after those that a collector waits for."""

_KERNELS = (
    sa.select(
        evaluation.c.id,
        problem.c.id,
        problem.c.name,
        evaluation.c.kernel_sha,
        evaluation.c.device,
        evaluation.c.round,
        evaluation.c.state,
        evaluation.c.outcome,
        evaluation.c.speedup,
        evaluation.c.speedup_low,
        evaluation.c.speedup_high,
        evaluation.c.detail,
    )
    .join_from(evaluation, problem, evaluation.c.problem_id == problem.c.id)
    .order_by(problem.c.name, evaluation.c.id)
)


def judged_kernels(conn: sa.Connection, run_id: int) -> list[JudgedKernel]:
    """The verdicts behind the settled turns of a run, each once, by problem."""
    used = (
        sa.select(turn.c.evaluation_id)
        .join_from(turn, trajectory)
        .join(rollout_group)
        .where(rollout_group.c.run_id == run_id, turn.c.evaluation_id.is_not(None))
    )
    return _kernels(conn, evaluation.c.id.in_(used), evaluation.c.state == "done")


def kernels(conn: sa.Connection, ids: Sequence[int]) -> dict[int, JudgedKernel]:
    """Evaluations by id, judged or not."""
    return {k.id: k for k in _kernels(conn, evaluation.c.id.in_(ids))}


def best(conn: sa.Connection, run_id: int) -> set[int]:
    """Evaluations of the fastest correct kernel of each problem."""
    query = sa.text("SELECT evaluation_id FROM v_best WHERE run_id = :run_id")
    return set(conn.execute(query, {"run_id": run_id}).scalars())


def evaluations_of_turns(conn: sa.Connection, run_id: int) -> dict[int, int | None]:
    """Evaluation by turn; None for a turn that has none."""
    query = sa.select(turn.c.id, turn.c.evaluation_id).join_from(turn, trajectory).join(rollout_group)
    rows = fetch(conn, query.where(rollout_group.c.run_id == run_id))
    return dict(rows)


def enqueue(
    conn: sa.Connection, again: Sequence[JudgedKernel], harness: str, device: str, *, same_seeds: bool
) -> tuple[int, list[int]]:
    """Queue these kernels as a round of their own; its number, and the new evaluations in the same order."""
    number: int = (
        conn.execute(sa.select(sa.func.coalesce(sa.func.max(evaluation.c.round), 0))).scalar_one() + 1
    )
    jobs = []
    for k in again:
        seeds = k.detail.get("seeds") if same_seeds and k.detail else None
        jobs.append(
            queue.enqueue(conn, k.problem_id, k.kernel_sha, harness, device, number, LATER, seeds=seeds)
        )
    detail = {"round": number, "of": [k.id for k in again], "jobs": jobs, "same_seeds": same_seeds}
    events.log(conn, "round_queued", "evaluation", None, "replay", detail)
    return number, jobs


def _kernels(conn: sa.Connection, *where: Any) -> list[JudgedKernel]:
    return [JudgedKernel(*row) for row in fetch(conn, _KERNELS.where(*where))]
