"""What belongs to a run: the rows that were made for it, and those that they refer to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.domain.near import near
from kpipe.errors import StoreError
from kpipe.store.models import (
    baseline,
    blob,
    coder_call,
    coder_payment,
    evaluation,
    event,
    finding,
    metadata,
    policy_version,
    problem,
    rollout_group,
    run,
    tokens,
    train_sample,
    train_step,
    trajectory,
    turn,
    turn_sample,
    worker,
)

Ids = sa.Select[int]

TEXTS = tuple(
    column
    for table in metadata.sorted_tables
    for column in table.columns
    if any(key.target_fullname == "blob.sha" for key in column.foreign_keys)
)
"""Every column that names a text."""


def exactly(conn: sa.Connection, names: Sequence[str]) -> list[int]:
    """Ids of the named runs. Raises StoreError for a name that no run has."""
    known = {name: id_ for id_, name in conn.execute(sa.select(run.c.id, run.c.name).order_by(run.c.id))}
    for name in names:
        if name not in known:
            raise StoreError(
                f"There is no run {name!r}.{near(name, known)}",
                f"The database has: {', '.join(known) or 'no run at all'}.",
            )
    return sorted({known[name] for name in names})


def ids(conn: sa.Connection, names: Sequence[str]) -> list[int]:
    """Ids of the named runs, and of those whose turns they were trained on. Raises StoreError."""
    found = set(exactly(conn, names))
    while more := set(conn.execute(_trained_on(found)).scalars()) - found:
        found |= more
    return sorted(found)


def names(conn: sa.Connection, ids: Sequence[int]) -> list[str]:
    """Of the runs, in the order of their ids."""
    return list(conn.execute(sa.select(run.c.name).where(run.c.id.in_(ids)).order_by(run.c.id)).scalars())


def _trained_on(runs: set[int]) -> Ids:
    return _of_sample(rollout_group.c.run_id).where(train_sample.c.run_id.in_(runs)).distinct()


def users(conn: sa.Connection, run_id: int) -> list[int]:
    """Other runs that were trained on this run's turns."""
    query = _of_sample(train_sample.c.run_id).where(
        rollout_group.c.run_id == run_id, train_sample.c.run_id != run_id
    )
    return sorted(conn.execute(query.distinct()).scalars())


def _of_sample(column: sa.Column[int]) -> Ids:
    return (
        sa.select(column)
        .select_from(train_sample)
        .join(turn, train_sample.c.turn_id == turn.c.id)
        .join(trajectory)
        .join(rollout_group)
    )


def of(table: str, runs: Sequence[int]) -> sa.ColumnElement[bool]:
    """Which rows of the table belong to these runs, as a condition."""
    return _RULES[table](runs)


def groups(runs: Sequence[int]) -> Ids:
    return sa.select(rollout_group.c.id).where(rollout_group.c.run_id.in_(runs))


def _turns(runs: Sequence[int], column: sa.Column[Any] = turn.c.id) -> sa.Select[Any]:
    return sa.select(column).join_from(turn, trajectory).where(trajectory.c.group_id.in_(groups(runs)))


def _used(runs: Sequence[int], name: str) -> sa.CompoundSelect[Any]:
    """Calls or evaluations of turns, and of the samples that a turn did not choose."""
    samples = sa.select(turn_sample.c[name]).where(turn_sample.c.turn_id.in_(_turns(runs)))
    return sa.union(_turns(runs, turn.c[name]), samples)


def _evaluations(runs: Sequence[int], column: sa.Column[Any] = evaluation.c.id) -> sa.Select[Any]:
    return sa.select(column).where(evaluation.c.id.in_(_used(runs, "evaluation_id")))


def _problems(runs: Sequence[int]) -> Ids:
    return sa.select(rollout_group.c.problem_id).where(rollout_group.c.run_id.in_(runs))


def _calls(runs: Sequence[int]) -> sa.ColumnElement[bool]:
    return coder_call.c.id.in_(_used(runs, "coder_call_id"))


def _texts(runs: Sequence[int]) -> sa.ColumnElement[bool]:
    named = (sa.select(column).where(of(column.table.name, runs), column.is_not(None)) for column in TEXTS)
    return blob.c.sha.in_(sa.union(*named))


def _events(runs: Sequence[int]) -> sa.ColumnElement[bool]:
    subjects: dict[str, Any] = {"run": list(runs), "group": groups(runs), "evaluation": _evaluations(runs)}
    return sa.or_(
        *(sa.and_(event.c.subject == name, event.c.subject_id.in_(which)) for name, which in subjects.items())
    )


_RULES: dict[str, Callable[[Sequence[int]], sa.ColumnElement[bool]]] = {
    "run": lambda runs: run.c.id.in_(runs),
    "policy_version": lambda runs: policy_version.c.run_id.in_(runs),
    "rollout_group": lambda runs: rollout_group.c.run_id.in_(runs),
    "trajectory": lambda runs: trajectory.c.group_id.in_(groups(runs)),
    "turn": lambda runs: turn.c.id.in_(_turns(runs)),
    "turn_sample": lambda runs: turn_sample.c.turn_id.in_(_turns(runs)),
    "coder_payment": lambda runs: coder_payment.c.run_id.in_(runs),
    "tokens": lambda runs: tokens.c.turn_id.in_(_turns(runs)),
    "train_step": lambda runs: train_step.c.run_id.in_(runs),
    "train_sample": lambda runs: train_sample.c.run_id.in_(runs),
    "problem": lambda runs: problem.c.id.in_(_problems(runs)),
    "baseline": lambda runs: baseline.c.problem_id.in_(_problems(runs)),
    "evaluation": lambda runs: evaluation.c.id.in_(_evaluations(runs)),
    "finding": lambda runs: finding.c.evaluation_id.in_(_evaluations(runs)),
    "worker": lambda runs: worker.c.id.in_(_evaluations(runs, evaluation.c.worker_id)),
    "coder_call": _calls,
    "blob": _texts,
    "event": _events,
}
