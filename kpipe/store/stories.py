"""Everything about one trajectory, for a person who wants to follow it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kpipe.store.models import (
    blob,
    coder_call,
    policy_version,
    problem,
    rollout_group,
    run,
    tokens,
    train_sample,
    trajectory,
    turn,
)
from kpipe.store.records import Story, TurnStory, Use
from kpipe.store.sql import fetch, fetch_one
from kpipe.store.verdicts import evaluations

_reference, _prompt, _kernel = blob.alias("reference"), blob.alias("prompt"), blob.alias("kernel")
_STORY = (
    sa.select(
        trajectory.c.id,
        run.c.name,
        rollout_group.c.ordinal,
        trajectory.c.member,
        problem.c.id,
        problem.c.name,
        _reference.c.body,
        trajectory.c.state,
    )
    .join_from(trajectory, rollout_group)
    .join(run)
    .join(problem, rollout_group.c.problem_id == problem.c.id)
    .join(_reference, problem.c.reference_sha == _reference.c.sha)
)
_TURNS = (
    sa.select(
        turn.c.id,
        turn.c.ordinal,
        turn.c.state,
        policy_version.c.step,
        _prompt.c.body,
        turn.c.suggestion,
        tokens.c.finish_reason,
        coder_call.c.model,
        coder_call.c.usd,
        coder_call.c.error,
        _kernel.c.body,
        turn.c.kernel_sha,
        turn.c.outcome,
        turn.c.reward,
        turn.c.fault,
        turn.c.evaluation_id,
    )
    .join_from(turn, tokens)
    .join(policy_version, turn.c.policy_version_id == policy_version.c.id)
    .join(_prompt, turn.c.prompt_sha == _prompt.c.sha)
    .outerjoin(coder_call, turn.c.coder_call_id == coder_call.c.id)
    .outerjoin(_kernel, turn.c.kernel_sha == _kernel.c.sha)
    .order_by(turn.c.ordinal)
)
_USES = (
    sa.select(
        train_sample.c.turn_id,
        run.c.name,
        train_sample.c.step,
        train_sample.c["return"],
        train_sample.c.advantage,
        train_sample.c.weight,
        train_sample.c.drop_reason,
    )
    .join_from(train_sample, run, train_sample.c.run_id == run.c.id)
    .join(turn, train_sample.c.turn_id == turn.c.id)
    .order_by(train_sample.c.run_id, turn.c.ordinal)
)


def story(conn: sa.Connection, trajectory_id: int) -> Story | None:
    """The trajectory with its turns; None for an unknown id."""
    head = fetch_one(conn, _STORY.where(trajectory.c.id == trajectory_id))
    if head is None:
        return None
    rows = fetch(conn, _TURNS.where(turn.c.trajectory_id == trajectory_id))
    judged = evaluations(conn, [row.evaluation_id for row in rows if row.evaluation_id is not None])
    uses: dict[int, list[Use]] = {}
    for turn_id, *use in fetch(conn, _USES.where(turn.c.trajectory_id == trajectory_id)):
        uses.setdefault(turn_id, []).append(Use(*use))
    turns = [_turn(row, judged, tuple(uses.get(row.id, ()))) for row in rows]
    return Story(*(*head, tuple(turns)))


def ids(conn: sa.Connection) -> list[int]:
    """Every trajectory's."""
    return list(conn.execute(sa.select(trajectory.c.id).order_by(trajectory.c.id)).scalars())


def _turn(row: Any, judged: dict[int, Any], uses: tuple[Use, ...]) -> TurnStory:
    result = judged.get(row.evaluation_id)
    return TurnStory(*(*row, result.verdict if result else None, uses))
