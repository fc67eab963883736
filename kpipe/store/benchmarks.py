"""What a benchmark asks of its run: every episode with the best kernel of its turns."""

from __future__ import annotations

import sqlalchemy as sa

from kpipe.store import events
from kpipe.store.models import evaluation, problem, rollout_group, trajectory, turn
from kpipe.store.records import Episode
from kpipe.store.sql import fetch

_EPISODES = (
    sa.select(
        problem.c.level,
        problem.c.name,
        trajectory.c.member,
        sa.func.max(sa.case((turn.c.outcome == "correct", evaluation.c.speedup))),
        sa.func.sum(sa.case((turn.c.fault.in_(("infra", "prompt_too_long")), 1), else_=0)),
        sa.func.count(turn.c.fault),
        sa.func.count(turn.c.id),
    )
    .join_from(trajectory, rollout_group)
    .join(problem, rollout_group.c.problem_id == problem.c.id)
    .join(turn, turn.c.trajectory_id == trajectory.c.id)
    .outerjoin(evaluation, turn.c.evaluation_id == evaluation.c.id)
    .group_by(problem.c.level, problem.c.name, trajectory.c.id, trajectory.c.member)
    .order_by(problem.c.level, problem.c.name, trajectory.c.member)
)


def episodes(conn: sa.Connection, run_id: int) -> list[Episode]:
    """By problem and member."""
    rows = fetch(conn, _EPISODES.where(rollout_group.c.run_id == run_id))
    return [Episode(*row[:4], *map(int, row[4:])) for row in rows]


def open_groups(conn: sa.Connection, run_id: int) -> int:
    """How many are not finished, whoever plays them."""
    query = sa.select(sa.func.count()).select_from(rollout_group)
    return conn.execute(
        query.where(rollout_group.c.run_id == run_id, rollout_group.c.state == "open")
    ).scalar_one()


def keep(conn: sa.Connection, run_id: int, figures: dict[str, object]) -> None:
    """The figures, as an event of the run."""
    events.log(conn, "bench_measured", "run", run_id, "bench", figures)
