"""What the trainer takes and what it commits. A run consumes a turn once: at the commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from kpipe.errors import StoreError
from kpipe.store import events, policies, runs
from kpipe.store.models import (
    policy_version,
    problem,
    rollout_group,
    tokens,
    train_sample,
    train_step,
    trajectory,
    turn,
)
from kpipe.store.records import PolicyVersion, Sample, TokenRecord, TrainedSample, TrainStep
from kpipe.store.sql import add_if_new, fetch, word
from kpipe.store.tokens import decode

STALE = "stale"
ALARM = "alarm"
_NOT_STALE = sa.or_(train_sample.c.drop_reason.is_(None), train_sample.c.drop_reason != STALE)

_SAMPLES = (
    sa.select(
        turn.c.id,
        turn.c.trajectory_id,
        trajectory.c.group_id,
        rollout_group.c.problem_id,
        trajectory.c.member,
        turn.c.ordinal,
        policy_version.c.step,
        turn.c.reward,
        tokens.c.codec,
        tokens.c.data,
        tokens.c.prompt_len,
        tokens.c.completion_len,
        tokens.c.sampling,
        tokens.c.finish_reason,
    )
    .join_from(rollout_group, trajectory)
    .join(turn)
    .join(tokens)
    .join(policy_version, turn.c.policy_version_id == policy_version.c.id)
    .where(rollout_group.c.id.in_(sa.bindparam("groups", expanding=True)))
    .order_by(rollout_group.c.ordinal, trajectory.c.member, turn.c.ordinal)
)


def ready(conn: sa.Connection, run_id: int, trainer_step: int, max_off_policy_steps: int) -> int:
    """How many groups `take` could give."""
    fresh = _fresh(run_id, trainer_step - max_off_policy_steps).subquery()
    return int(conn.execute(sa.select(sa.func.count()).select_from(fresh)).scalar_one())


def take(
    conn: sa.Connection, run_id: int, trainer_step: int, max_off_policy_steps: int, limit: int
) -> list[list[Sample]]:
    """Samples of the oldest complete groups that no update has consumed, at most `limit` groups.

    A group is left out when any turn of it is from a policy more than `max_off_policy_steps` older than
    `trainer_step`. Nothing is marked: the same groups come again until `commit_step`.
    """
    query = _fresh(run_id, trainer_step - max_off_policy_steps).order_by(rollout_group.c.ordinal).limit(limit)
    return _groups(conn, list(conn.execute(query).scalars()))


def stale_groups(conn: sa.Connection, run_id: int, trainer_step: int, max_off_policy_steps: int) -> list[int]:
    """Complete groups that are too old to be trained at this step or any later one."""
    return list(conn.execute(_fresh(run_id, trainer_step - max_off_policy_steps, stale=True)).scalars())


def commit_step(
    conn: sa.Connection,
    run_id: int,
    step: int,
    policy_in_id: int,
    checkpoint: tuple[str, str],
    batch_hash: str,
    metrics: Mapping[str, Any],
    samples: Sequence[TrainedSample],
    stale_groups: Sequence[int] = (),
    alarms: Mapping[str, str] = MappingProxyType({}),
    rescoring: int | None = None,
) -> PolicyVersion:
    """Everything that update `step` changed, at once: the step, what became of each sample, the new version.

    `checkpoint` is (path, digest) and must lie in its final place. Turns of `stale_groups` are consumed as
    dropped. `alarms` go into the journal, sentence by name. `rescoring` is `last_rescoring` of before the
    groups were taken; None does not ask. Raises StoreError unless the step is the next one, its turns are new
    and their rewards are still the same.
    """
    newest = policies.latest(conn, run_id)
    if newest is None or newest.step != step - 1:
        raise _not_next(step, newest)
    path, digest = checkpoint
    row = {"run_id": run_id, "step": step, "path": path, "digest": digest}
    version_id = add_if_new(conn, policy_version, row)
    if version_id is None:
        raise _not_next(step, policies.latest(conn, run_id))
    values = {"policy_in_id": policy_in_id, "policy_out_id": version_id, "batch_hash": batch_hash}
    conn.execute(train_step.insert().values(run_id=run_id, step=step, metrics=dict(metrics), **values))
    try:
        _consume(conn, run_id, step, samples, stale_groups)
    except IntegrityError:
        raise StoreError(
            f"Update {step} would train turns that an earlier update has consumed.",
            "Take new groups and make the update again.",
        ) from None
    if rescoring is not None and _rescored_after(conn, rescoring, run_id, step):
        raise StoreError(
            f"`kpipe replay score --apply` has changed rewards while update {step} was made of the old ones.",
            "Start the trainer again: it makes the update of the new ones.",
        )
    detail = {"samples": len(samples), "stale_groups": list(stale_groups), "policy": version_id}
    events.log(conn, "step_committed", "run", run_id, "train", {"step": step, **detail})
    for name, message in alarms.items():
        events.log(conn, ALARM, "run", run_id, "train", {"step": step, "alarm": name, "message": message})
    return PolicyVersion(version_id, run_id, step, path, digest)


def last_rescoring(conn: sa.Connection) -> int:
    """What `commit_step` has to know to see a later one."""
    return events.newest(conn, "rescored", "run")


def _rescored_after(conn: sa.Connection, last: int, run_id: int, step: int) -> bool:
    """Were the turns of this update given other rewards after that? Nobody can do it until we are done."""
    played = (
        sa.select(rollout_group.c.run_id)
        .join_from(train_sample, turn, train_sample.c.turn_id == turn.c.id)
        .join(trajectory)
        .join(rollout_group)
        .where(train_sample.c.run_id == run_id, train_sample.c.step == step)
        .distinct()
    )
    owners = list(conn.execute(played).scalars())
    runs.lock(conn, owners)
    return events.newest(conn, "rescored", "run", owners) > last


def steps(conn: sa.Connection, run_id: int) -> list[tuple[int, dict[str, Any]]]:
    """(step, metrics) of every committed update, in order."""
    query = sa.select(train_step.c.step, train_step.c.metrics).where(train_step.c.run_id == run_id)
    return [(step, metrics) for step, metrics in conn.execute(query.order_by(train_step.c.step))]


def metrics_of(conn: sa.Connection, run_id: int, wanted: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Metrics by step of those of the `wanted` updates that are committed."""
    query = sa.select(train_step.c.step, train_step.c.metrics)
    rows = fetch(conn, query.where(train_step.c.run_id == run_id, train_step.c.step.in_(wanted)))
    return dict(rows)


def committed(conn: sa.Connection, run_id: int) -> list[TrainStep]:
    """Every committed update, in order."""
    query = sa.select(train_step.c.step, train_step.c.batch_hash, train_step.c.metrics)
    rows = fetch(conn, query.where(train_step.c.run_id == run_id).order_by(train_step.c.step))
    return [TrainStep(*row) for row in rows]


def taken(conn: sa.Connection, run_id: int, step: int) -> list[list[Sample]]:
    """What `take` gave to the trainer for update `step`, in the same order."""
    looked_at = (
        sa.select(trajectory.c.group_id)
        .join_from(train_sample, turn, train_sample.c.turn_id == turn.c.id)
        .join(trajectory)
        .where(train_sample.c.run_id == run_id, train_sample.c.step == step, _NOT_STALE)
        .distinct()
    )
    return _groups(conn, list(conn.execute(looked_at).scalars()))


def trained(conn: sa.Connection, run_id: int, step: int) -> list[TrainedSample]:
    """What update `step` made of its samples, by turn; stale ones left out."""
    s = train_sample.c
    query = sa.select(s.turn_id, s["return"], s.advantage, s.weight, s.drop_reason)
    query = query.where(s.run_id == run_id, s.step == step, _NOT_STALE).order_by(s.turn_id)
    return [TrainedSample(*row) for row in fetch(conn, query)]


def problem_names(conn: sa.Connection, run_id: int) -> dict[int, str]:
    """Name by id of every problem that the run's updates looked at."""
    return {i: name for _, i, name in _problems_looked_at(conn, run_id)}


def problems_by_step(conn: sa.Connection, run_id: int) -> dict[int, set[str]]:
    """Names of the problems that each update looked at."""
    found: dict[int, set[str]] = defaultdict(set)
    for step, _, name in _problems_looked_at(conn, run_id):
        found[step].add(name)
    return dict(found)


def _problems_looked_at(conn: sa.Connection, run_id: int) -> list[tuple[int, int, str]]:
    query = (
        sa.select(train_sample.c.step, problem.c.id, problem.c.name)
        .join_from(train_sample, turn, train_sample.c.turn_id == turn.c.id)
        .join(trajectory)
        .join(rollout_group)
        .join(problem, rollout_group.c.problem_id == problem.c.id)
        .where(train_sample.c.run_id == run_id, _NOT_STALE)
        .distinct()
    )
    return fetch(conn, query)


def _groups(conn: sa.Connection, groups: Sequence[int]) -> list[list[Sample]]:
    samples = (_sample(*row) for row in fetch(conn, _SAMPLES, groups=groups))
    return [list(members) for _, members in groupby(samples, key=lambda s: s.group_id)]


def _fresh(run_id: int, oldest_step: int, *, stale: bool = False) -> sa.Select[Any]:
    """Groups that are complete and not consumed, and whose oldest turn is young enough (or is not)."""
    oldest = sa.func.min(policy_version.c.step)
    return (
        sa.select(rollout_group.c.id)
        .join_from(rollout_group, trajectory)
        .join(problem, rollout_group.c.problem_id == problem.c.id)
        .join(turn, turn.c.trajectory_id == trajectory.c.id)
        .join(policy_version, turn.c.policy_version_id == policy_version.c.id)
        .where(
            rollout_group.c.run_id == run_id,
            problem.c.split == word("train"),  # what is held out is measured, never trained on
            rollout_group.c.state == word("complete"),
            rollout_group.c.consumed_step.is_(None),
        )
        .group_by(rollout_group.c.id, rollout_group.c.ordinal)
        .having(oldest < oldest_step if stale else oldest >= oldest_step)
    )


def _consume(
    conn: sa.Connection, run_id: int, step: int, samples: Sequence[TrainedSample], stale: Sequence[int]
) -> None:
    rows = [
        {
            "run_id": run_id,
            "turn_id": s.turn_id,
            "step": step,
            "return": s.return_,
            "advantage": s.advantage,
            "weight": s.weight,
            "drop_reason": s.drop_reason,
        }
        for s in samples
    ]
    if rows:
        conn.execute(train_sample.insert(), rows)
    left_out = (
        sa.select(sa.literal(run_id), turn.c.id, sa.literal(step), word(STALE))
        .join_from(turn, trajectory)
        .where(trajectory.c.group_id.in_(stale))
    )
    if stale:
        conn.execute(
            train_sample.insert().from_select(["run_id", "turn_id", "step", "drop_reason"], left_out)
        )
    consumed = (
        sa.select(trajectory.c.group_id)
        .join_from(train_sample, turn, train_sample.c.turn_id == turn.c.id)
        .join(trajectory)
        .where(train_sample.c.run_id == run_id, train_sample.c.step == step)
    )
    mark = rollout_group.update().where(rollout_group.c.run_id == run_id, rollout_group.c.id.in_(consumed))
    conn.execute(mark.values(consumed_step=step))


def _sample(*row: Any) -> Sample:
    codec, data, prompt_len, completion_len, sampling, finish_reason = row[8:]
    numbers = decode(codec, data, prompt_len, completion_len)
    return Sample(*(*row[:8], TokenRecord(*numbers, sampling, finish_reason)))


def _not_next(step: int, newest: PolicyVersion | None) -> StoreError:
    last = newest.step if newest else "missing"
    return StoreError(
        f"Update {step} cannot be committed: the run's newest policy version is {last}.",
        "Another trainer works on this run, or this update was committed before: start the trainer again.",
    )
