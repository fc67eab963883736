"""Outcomes and rewards of settled turns: read for another formula, and replaced with the old ones kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.store.models import evaluation, problem, rollout_group, trajectory, turn
from kpipe.store.records import JudgedTurn
from kpipe.store.sql import fetch

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
