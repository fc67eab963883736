"""What `kpipe show` shows: named sections, each a list of rows or a text, in the order of the screen.

Every function reads what one person can look at: one thing, or the newest few of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kpipe.domain.near import near
from kpipe.errors import UsageError
from kpipe.store import runs, training, workers
from kpipe.store.models import blob, rollout_group, trajectory, turn
from kpipe.store.sql import now, plain

Row = dict[str, Any]
Page = dict[str, list[Row] | str]

FEW = 20
"""Rows of a list of which nobody asked for one."""


def run(conn: sa.Connection, name: str | None) -> Page:
    """All runs; or one with its newest updates, its outcomes and where its time went."""
    if name is None:
        columns = "run, step, groups_open, groups_complete, groups_failed, turns, faults, created_at"
        return {"runs": _view(conn, "v_run", columns, "created_at")}
    run_id = _known_run(conn, name)
    updates = "step, samples, trained, mean_reward, mean_return, created_at"
    outcomes = "source, kind, turns, share"
    time = "stage, work, n, seconds"
    return {
        "run": _view(conn, "v_run", run=name),
        "updates": _view(conn, "v_step", updates, "step DESC", FEW, run_id=run_id),
        "outcomes": _view(conn, "v_outcomes", outcomes, "turns DESC, kind", run=name),
        "time": _view(conn, "v_time", time, "stage, work", run=name) + _training_time(conn, run_id),
    }


def group(conn: sa.Connection, group_id: int | None, run_name: str | None = None) -> Page:
    """The newest groups, or one with its trajectories."""
    if group_id is None:
        columns = "group_id, run, problem, state, turns, faults, mean_reward, best_speedup, consumed_step"
        newest = _newest(conn, rollout_group.c.id, run_name)
        return {"groups": _one_by_one(conn, "v_group", "group_id", newest, columns)}
    _check_id(conn, "group", rollout_group, group_id)
    columns = "trajectory_id, member, state, turns, reward, faults, best_speedup"
    return {
        "group": _view(conn, "v_group", group_id=group_id),
        "trajectories": _view(conn, "v_trajectory", columns, "member", group_id=group_id),
    }


def one_trajectory(conn: sa.Connection, trajectory_id: int | None, run_name: str | None = None) -> Page:
    """The newest trajectories, or one with its turns."""
    if trajectory_id is None:
        columns = "trajectory_id, run, group_id, problem, member, state, turns, reward, faults, best_speedup"
        newest = _newest(conn, trajectory.c.id, run_name)
        return {"trajectories": _one_by_one(conn, "v_trajectory", "trajectory_id", newest, columns)}
    _check_id(conn, "trajectory", trajectory, trajectory_id)
    columns = f"turn_id, turn, policy_step, {_RESULT}, speedup, reward, suggestion"
    return {
        "trajectory": _view(conn, "v_trajectory", trajectory_id=trajectory_id),
        "turns": _view(conn, "v_turn", columns, "turn", trajectory_id=trajectory_id),
    }


def one_turn(conn: sa.Connection, turn_id: int | None, run_name: str | None = None) -> Page:
    """The newest turns, or one with its suggestion, kernel, cost, verdict, log and use."""
    if turn_id is None:
        columns = f"turn_id, problem, policy_step, {_RESULT}, speedup, reward, suggestion"
        newest = _newest(conn, turn.c.id, run_name)
        return {"turns": _one_by_one(conn, "v_turn", "turn_id", newest, columns)}
    _check_id(conn, "turn", turn, turn_id)
    row = conn.execute(sa.select(turn).where(turn.c.id == turn_id)).mappings().one()
    evaluation = _view(conn, "evaluation", _EVALUATION, id=row["evaluation_id"])
    page: Page = {
        "turn": _view(conn, "v_turn", _TURN, turn_id=turn_id),
        "coder": _view(conn, "coder_call", _CALL, id=row["coder_call_id"]),
        "evaluation": evaluation,
        "findings": _view(
            conn, "finding", "rule, severity, line, message", "id", evaluation_id=row["evaluation_id"]
        ),
        "samples": _view(conn, "v_sample", _SAMPLE, "sample", turn_id=turn_id),
        "updates": _view(conn, _USES, "run, step, return_, advantage, weight, drop_reason", turn_id=turn_id),
        "suggestion": row["suggestion"],
        "kernel": _text(conn, row["kernel_sha"]),
        "log": _text(conn, evaluation[0].pop("log_sha") if evaluation else None),
    }
    return {name: section for name, section in page.items() if section}


_RESULT = "coalesce(outcome, fault, state) AS result"
_TURN = (
    "turn_id, run, problem, group_id, trajectory_id, member, turn, state, policy_step, outcome, reward, fault, "
    "prompt_tokens, completion_tokens, finish_reason, created_at, settled_at"
)
_CALL = "id AS coder_call_id, model, error, tokens_in, tokens_out, usd, seconds, attempts"
_EVALUATION = (
    "id AS evaluation_id, state, device, harness, outcome, speedup, speedup_low, speedup_high, time_ms, "
    "baseline_ms, build_s, run_s, attempt, failures, log_sha"
)
_SAMPLE = (
    "sample, chosen, coalesce(outcome, fault) AS result, speedup, reward, usd, coder_error, evaluation_id"
)
_USES = '(SELECT s.*, s."return" AS return_, r.name AS run FROM train_sample s JOIN run r ON r.id = s.run_id) used'


def queue(conn: sa.Connection) -> Page:
    """How many evaluations run and wait, by device; the first of them in the order of the queue."""
    totals = "device, state, count(*) AS evaluations, min(queued_at) AS oldest"
    jobs = "evaluation_id, problem, device, state, rank, attempt + failures AS retries, queued_at, host"
    order = "rank, evaluation_id"
    return {
        "queue": _view(conn, "v_queue", totals, "device, state", group="device, state"),
        "jobs": _view(conn, "v_queue", jobs, order, FEW, state="running")
        + _view(conn, "v_queue", jobs, order, FEW, state="queued"),
    }


def who(conn: sa.Connection) -> Page:
    """The workers that were heard of last, and how many seconds ago."""
    clock = conn.execute(sa.select(now())).scalar_one()
    newest = sorted(workers.list_(conn), key=lambda w: w["seen_at"], reverse=True)[:FEW]
    names = ("id", "stage", "host", "pid", "device", "status")
    return {
        "workers": [
            {
                **{name: w[name] for name in names},
                "started_at": plain(w["started_at"]),
                "seen_s_ago": round((clock - w["seen_at"]).total_seconds(), 1),
            }
            for w in newest
        ]
    }


def best(conn: sa.Connection, run_name: str | None) -> Page:
    """The fastest correct kernel of every problem, run by run."""
    columns = (
        "run, level, problem, speedup, speedup_low, speedup_high, time_ms, policy_step, turn_id, suggestion"
    )
    chosen: dict[str, Any] = {} if run_name is None else {"run_id": _known_run(conn, run_name)}
    return {"best": _view(conn, "v_best", columns, "run_id, level, problem", **chosen)}


def cost(conn: sa.Connection, run_name: str | None) -> Page:
    """What the coder cost, and what the cache saved."""
    chosen: dict[str, Any] = {} if run_name is None else {"run": run_name}
    if run_name is not None:
        _known_run(conn, run_name)
    paid = _view(conn, "v_budget", order="run", **chosen)
    return {
        "coder": _view(conn, "v_coder_cost", order="run, model", **chosen),
        **({"budget": paid} if paid else {}),
        "reused": _view(conn, "v_cache", order="run", **chosen),
    }


def _view(
    conn: sa.Connection,
    view: str,
    columns: str = "*",
    order: str = "1",
    limit: int | None = None,
    group: str | None = None,
    **equal: Any,
) -> list[Row]:
    """Rows of a view or table where columns have these values. The other arguments are texts of this file."""
    where = " AND ".join(f"{name} = :{name}" for name in equal) or "1 = 1"
    grouped = f"GROUP BY {group} " if group else ""
    limited = f" LIMIT {limit}" if limit else ""
    query = f"SELECT {columns} FROM {view} WHERE {where} {grouped}ORDER BY {order}{limited}"  # noqa: S608
    rows = conn.execute(sa.text(query), equal).mappings()
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def _one_by_one(
    conn: sa.Connection, view: str, key: str, ids: Sequence[int], columns: str = "*"
) -> list[Row]:
    """Rows of a view by id, in this order: a view that groups is quick for one id, not for a list of them."""
    chosen: list[dict[str, Any]] = [{key: id_} for id_ in ids]
    return [row for where in chosen for row in _view(conn, view, columns, **where)]


def _newest(conn: sa.Connection, key: sa.Column[int], run_name: str | None) -> list[int]:
    """The last few ids of groups, trajectories or turns."""
    query = sa.select(key)
    if run_name is not None:
        run_id = _known_run(conn, run_name)
        if key.table is turn:
            query = query.join_from(turn, trajectory).join(rollout_group)
        elif key.table is trajectory:
            query = query.join_from(trajectory, rollout_group)
        query = query.where(rollout_group.c.run_id == run_id)
    return list(conn.execute(query.order_by(key.desc()).limit(FEW)).scalars())


def _training_time(conn: sa.Connection, run_id: int) -> list[Row]:
    """Of the updates, from their metrics: which views cannot read alike on both databases."""
    metrics = [m for _, m in training.steps(conn, run_id)]
    works = (("update", "seconds"), ("wait for groups", "seconds_wait"))
    return [
        {"stage": "train", "work": work, "n": len(metrics), "seconds": sum(m.get(key, 0.0) for m in metrics)}
        for work, key in works
        if metrics
    ]


def _text(conn: sa.Connection, sha: str | None) -> str:
    return conn.execute(sa.select(blob.c.body).where(blob.c.sha == sha)).scalar_one_or_none() or ""


def _known_run(conn: sa.Connection, name: str) -> int:
    found = runs.get(conn, name)
    if found is None:
        names = [r.name for r in runs.list_(conn)]
        raise UsageError(f"There is no run {name!r}.{near(name, names)}", "`kpipe show run` lists all runs.")
    return found.id


def _check_id(conn: sa.Connection, what: str, table: sa.Table, id_: int) -> None:
    """Raises UsageError that names the neighbours of an id that does not exist."""
    key = table.c.id
    if conn.execute(sa.select(key).where(key == id_)).first():
        return
    below = conn.execute(sa.select(sa.func.max(key)).where(key < id_)).scalar_one()
    above = conn.execute(sa.select(sa.func.min(key)).where(key > id_)).scalar_one()
    beside = [str(n) for n in (below, above) if n is not None]
    fix = f"Near: {', '.join(beside)}." if beside else f"The database has no {what} yet."
    raise UsageError(f"There is no {what} {id_}.", fix)
