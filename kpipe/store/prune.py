"""Delete whole runs, with everything that only they refer to.

In batches, each a transaction: groups from the newest to the oldest, then the updates, then texts that nothing
refers to any more, and the run's own row last. After an interruption the run is a shorter one, beside texts
without use, and asking for its deletion again finishes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kpipe.errors import StoreError
from kpipe.store import belongings, events
from kpipe.store.database import Database
from kpipe.store.models import (
    blob,
    coder_call,
    coder_payment,
    evaluation,
    event,
    finding,
    policy_version,
    rollout_group,
    run,
    tokens,
    train_sample,
    train_step,
    trajectory,
    turn,
    turn_sample,
)
from kpipe.store.sql import after, fetch, now

GROUPS = 50
"""Groups that one transaction deletes: their turns must fit into the parameters of a statement."""

TEXTS = 5_000

Step = Callable[[sa.Connection], Counter[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs to delete and runs to keep, with the reason, both by name; `checkpoints` by run."""

    runs: dict[int, str]
    kept: dict[str, str]
    checkpoints: dict[str, list[str]]


class _Undo(Exception):
    """Ends a rehearsal without leaving a trace."""


def plan(conn: sa.Connection, names: Sequence[str] = (), older_than_s: float | None = None) -> Plan:
    """The named runs, or those without a sign of life for so many seconds, as far as they can be deleted.

    Raises StoreError for a name that no run has.
    """
    wanted = belongings.exactly(conn, names) if older_than_s is None else _quiet(conn, older_than_s)
    called: dict[int, str] = dict(fetch(conn, sa.select(run.c.id, run.c.name)))
    doomed, kept = set(wanted), {}
    while hindered := {id_: why for id_ in sorted(doomed) if (why := _hindrance(conn, id_, doomed, called))}:
        kept.update({called[id_]: why for id_, why in hindered.items()})
        doomed -= hindered.keys()
    chosen = {id_: called[id_] for id_ in sorted(doomed)}
    return Plan(chosen, kept, {name: _checkpoints(conn, id_, doomed) for id_, name in chosen.items()})


def prune(db: Database, runs: Sequence[int]) -> Counter[str]:
    """Delete these runs of a plan; rows by table that are gone. Raises StoreError when one is used again."""
    gone: Counter[str] = Counter()
    for step in _steps(runs):
        while went := db.write(step):
            gone += went
    return gone


def rehearse(db: Database, runs: Sequence[int]) -> Counter[str]:
    """What `prune` would delete: it is done in one transaction, counted and undone."""
    gone: Counter[str] = Counter()

    def all_steps(conn: sa.Connection) -> None:
        gone.clear()
        for step in _steps(runs):
            while went := step(conn):
                gone.update(went)
        raise _Undo

    try:
        db.write(all_steps)
    except _Undo:
        return gone
    raise AssertionError("unreachable")


def _steps(runs: Sequence[int]) -> list[Step]:
    """Each is repeated until it finds nothing to delete."""
    doomed = set(runs)
    groups: list[Step] = [lambda conn, id_=id_: _delete_groups(conn, id_, doomed) for id_ in runs]  # type: ignore[misc]
    updates: list[Step] = [lambda conn, id_=id_: _delete_updates(conn, id_) for id_ in runs]  # type: ignore[misc]
    last: list[Step] = [lambda conn, id_=id_: _delete_run(conn, id_) for id_ in runs]  # type: ignore[misc]
    return [*groups, *updates, _sweep, *last]


def _quiet(conn: sa.Connection, seconds: float) -> list[int]:
    """Runs that nobody has written to for so long, by the database's clock."""
    since = after(-seconds)
    group_moved = sa.or_(
        rollout_group.c.created_at >= since,
        rollout_group.c.finished_at >= since,
        rollout_group.c.lease_until >= since,
    )
    moved = (
        sa.select(rollout_group.c.run_id).where(group_moved),
        sa.select(policy_version.c.run_id).where(policy_version.c.created_at >= since),
        sa.select(train_step.c.run_id).where(train_step.c.created_at >= since),
    )
    query = sa.select(run.c.id).where(run.c.created_at < since, run.c.id.not_in(sa.union(*moved)))
    return list(conn.execute(query.order_by(run.c.id)).scalars())


def _hindrance(conn: sa.Connection, run_id: int, doomed: set[int], called: dict[int, str]) -> str | None:
    """Why the run must stay, or None."""
    if users := [called.get(id_, str(id_)) for id_ in belongings.users(conn, run_id) if id_ not in doomed]:
        return f"run {', '.join(users)} was trained on its turns"
    g = rollout_group.c
    held = sa.select(g.ordinal).where(g.run_id == run_id, g.state == "open", g.lease_until > now())
    if (ordinal := conn.execute(held.limit(1)).scalar_one_or_none()) is not None:
        return f"a collector is at work on its group {ordinal}"
    e = evaluation.c
    judged = sa.select(e.id).where(
        e.state == "running", e.lease_until > now(), belongings.of("evaluation", [run_id])
    )
    if (job := conn.execute(judged.limit(1)).scalar_one_or_none()) is not None:
        return f"a worker is at work on its evaluation {job}"
    return None


def _checkpoints(conn: sa.Connection, run_id: int, doomed: set[int]) -> list[str]:
    """Paths of the run's policy versions that no remaining run names, by step."""
    v = policy_version.c
    others = sa.select(v.path).where(v.run_id.not_in(doomed))
    query = sa.select(v.path).where(v.run_id == run_id, v.path.not_in(others)).order_by(v.step)
    return list(conn.execute(query).scalars())


def _delete_groups(conn: sa.Connection, run_id: int, doomed: set[int]) -> Counter[str]:
    _lock(conn)
    newest = sa.select(rollout_group.c.id).where(rollout_group.c.run_id == run_id)
    groups = list(conn.execute(newest.order_by(rollout_group.c.ordinal.desc()).limit(GROUPS)).scalars())
    if not groups:
        return Counter()
    if why := _hindrance(conn, run_id, doomed, {}):
        raise StoreError(
            f"Run {run_id} is used again: {why}.", "Stop its stages, and type the command again."
        )
    members = sa.select(trajectory.c.id).where(trajectory.c.group_id.in_(groups))
    turns = sa.select(turn.c.id).where(turn.c.trajectory_id.in_(members))
    made = conn.execute(
        sa.union(*(query.where(rollout_group.c.id.in_(groups)) for query in _made("coder_call_id")))
    ).all()
    gone = Counter(
        train_sample=_delete(conn, train_sample, train_sample.c.turn_id.in_(turns)),
        tokens=_delete(conn, tokens, tokens.c.turn_id.in_(turns)),
        turn_sample=_delete(conn, turn_sample, turn_sample.c.turn_id.in_(turns)),
        turn=_delete(conn, turn, turn.c.trajectory_id.in_(members)),
        trajectory=_delete(conn, trajectory, trajectory.c.group_id.in_(groups)),
        event=_delete_events(conn, "group", groups),
        rollout_group=_delete(conn, rollout_group, rollout_group.c.id.in_(groups)),
    )
    gone += _delete_evaluations(conn, {(row.problem_id, row.kernel_sha) for row in made if row.kernel_sha})
    return gone + _delete_calls(conn, {row.coder_call_id for row in made if row.coder_call_id})


def _made(*more: str) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Problem and kernel of every turn, and of every sample of one; `more` are columns that both have."""
    kernels = [
        sa.select(rollout_group.c.problem_id, table.c.kernel_sha, *(table.c[name] for name in more))
        for table in (turn, turn_sample)
    ]
    return (
        kernels[0].join_from(turn, trajectory).join(rollout_group),
        kernels[1].join_from(turn_sample, turn).join(trajectory).join(rollout_group),
    )


def _delete_evaluations(conn: sa.Connection, made: set[tuple[int, str]]) -> Counter[str]:
    """Those of kernels that no turn on the same problem has any more, on every device and in every round."""
    shas = sorted({sha for _, sha in made})
    of_turns, of_samples = _made()
    still = sa.union(
        of_turns.where(turn.c.kernel_sha.in_(shas)), of_samples.where(turn_sample.c.kernel_sha.in_(shas))
    )
    unmade = made - {(problem_id, sha) for problem_id, sha in conn.execute(still)}
    e = evaluation.c
    found = conn.execute(sa.select(e.id, e.problem_id, e.kernel_sha).where(e.kernel_sha.in_(shas)))
    ids = sorted(id_ for id_, problem_id, sha in found if (problem_id, sha) in unmade)
    return Counter(
        finding=_delete(conn, finding, finding.c.evaluation_id.in_(ids)),
        event=_delete_events(conn, "evaluation", ids),
        evaluation=_delete(conn, evaluation, evaluation.c.id.in_(ids)),
    )


def _delete_calls(conn: sa.Connection, ids: set[int]) -> Counter[str]:
    """Those that no turn uses any more."""
    used = sa.union(
        *(
            sa.select(table.c.coder_call_id).where(table.c.coder_call_id.in_(sorted(ids)))
            for table in (turn, turn_sample)
        )
    )
    unused = ids - set(conn.execute(used).scalars())
    return Counter(coder_call=_delete(conn, coder_call, coder_call.c.id.in_(sorted(unused))))


def _delete_updates(conn: sa.Connection, run_id: int) -> Counter[str]:
    return (
        Counter(
            train_sample=_delete(conn, train_sample, train_sample.c.run_id == run_id),
            train_step=_delete(conn, train_step, train_step.c.run_id == run_id),
            policy_version=_delete(conn, policy_version, policy_version.c.run_id == run_id),
        )
        + Counter()
    )


def _sweep(conn: sa.Connection) -> Counter[str]:
    """Texts that nothing refers to."""
    _lock(conn)
    named = sa.union(*(sa.select(column).where(column.is_not(None)) for column in belongings.TEXTS))
    unnamed = list(conn.execute(sa.select(blob.c.sha).where(blob.c.sha.not_in(named)).limit(TEXTS)).scalars())
    return Counter(blob=_delete(conn, blob, blob.c.sha.in_(unnamed))) + Counter()


def _delete_run(conn: sa.Connection, run_id: int) -> Counter[str]:
    name = conn.execute(sa.select(run.c.name).where(run.c.id == run_id)).scalar_one_or_none()
    if name is None:
        return Counter()
    gone = Counter(
        event=_delete_events(conn, "run", [run_id]),
        coder_payment=_delete(conn, coder_payment, coder_payment.c.run_id == run_id),
        run=_delete(conn, run, run.c.id == run_id),
    )
    events.log(conn, "run_pruned", "store", None, "store", {"name": name})
    return gone


def _delete_events(conn: sa.Connection, subject: str, ids: Sequence[int]) -> int:
    """SQLite gives the ids of deleted rows again: their history must not be that of the new ones."""
    return _delete(conn, event, sa.and_(event.c.subject == subject, event.c.subject_id.in_(ids)))


def _delete(conn: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
    return conn.execute(sa.delete(table).where(where)).rowcount


def _lock(conn: sa.Connection) -> None:
    """Postgres: wait for every transaction that stores a text and may be about to refer to it, or to an
    evaluation or a call that it found; nobody stores one until this transaction ends.
    """
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("LOCK TABLE blob IN SHARE ROW EXCLUSIVE MODE")
