"""What a run's policy said that paid: examples for a supervised start."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from kpipe.store.models import blob, evaluation, rollout_group, tokens, train_sample, trajectory, turn
from kpipe.store.records import Example
from kpipe.store.sql import fetch

Measure = Literal["advantage", "speedup"]


def best(conn: sa.Connection, run_id: int, by: Measure, per_problem: int) -> list[Example]:
    """The best suggestions of a run, each with the prompt that it answered; at most so many of a problem.

    `advantage`: of turns that an update was trained on, above zero; `speedup`: of correct kernels. The best
    come first. A suggestion that was cut at the length limit is left out, and so is a pair said before.
    """
    value = train_sample.c.advantage if by == "advantage" else evaluation.c.speedup
    said = (
        sa.select(
            rollout_group.c.problem_id,
            turn.c.prompt_sha,
            turn.c.suggestion,
            sa.func.max(value).label("value"),
            sa.func.min(turn.c.id).label("turn_id"),
        )
        .join_from(turn, trajectory)
        .join(rollout_group)
        .where(turn.c.suggestion != "", *_worth(run_id, by))
        .group_by(rollout_group.c.problem_id, turn.c.prompt_sha, turn.c.suggestion)
    )
    if by == "advantage":
        said = said.join(train_sample, train_sample.c.turn_id == turn.c.id)
    else:
        said = said.join(evaluation, evaluation.c.id == turn.c.evaluation_id)
    found = (
        said.join(tokens, tokens.c.turn_id == turn.c.id).where(tokens.c.finish_reason == "stop").subquery()
    )
    order = (found.c.value.desc(), found.c.turn_id)
    place = sa.func.row_number().over(partition_by=found.c.problem_id, order_by=order).label("place")
    ranked = sa.select(found, place).subquery()
    query = (
        sa.select(blob.c.body, ranked.c.suggestion, ranked.c.value)
        .join_from(ranked, blob, blob.c.sha == ranked.c.prompt_sha)
        .where(ranked.c.place <= per_problem)
        .order_by(ranked.c.value.desc(), ranked.c.turn_id)
    )
    return [Example(*row) for row in fetch(conn, query)]


def _worth(run_id: int, by: Measure) -> list[sa.ColumnElement[bool]]:
    if by == "advantage":
        return [train_sample.c.run_id == run_id, train_sample.c.advantage > 0]
    return [rollout_group.c.run_id == run_id, turn.c.outcome == "correct", evaluation.c.speedup > 0]
