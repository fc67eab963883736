"""Groups, trajectories and turns: the collector's side.

A turn goes suggested -> evaluating -> settled, each step one transaction. Rows are always locked in the
order run, blob, coder_call, evaluation, turn, trajectory, group, so that no two writers wait in a circle.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import bindparam

from kpipe.errors import LeaseLost
from kpipe.store import blobs, events, ledger, queue, tokens, training
from kpipe.store.ledger import cached_call
from kpipe.store.models import (
    blob,
    coder_call,
    evaluation,
    policy_version,
    rollout_group,
    run,
    trajectory,
    turn,
    turn_sample,
)
from kpipe.store.models import tokens as tokens_table
from kpipe.store.records import CoderCall, Group, StoredTurn, SuggestedTurn, Trajectory
from kpipe.store.sql import add_if_new, after, fetch, fetch_one, now, word
from kpipe.store.verdicts import evaluations

__all__ = [
    "ahead",
    "cached_call",
    "call_usd",
    "claim_group",
    "counts",
    "evaluations",
    "next_ordinal",
    "open_group",
    "record_kernel",
    "record_suggestions",
    "renew_group",
    "settle",
    "solved",
    "trajectories",
    "turns",
]

_GROUP = tuple(rollout_group.c[name] for name in Group.__slots__)
_kernel, _log = blob.alias("kernel"), blob.alias("log")
_TURNS = (
    sa.select(
        turn.c.id,
        turn.c.trajectory_id,
        turn.c.ordinal,
        turn.c.state,
        turn.c.suggestion,
        tokens_table.c.finish_reason,
        _kernel.c.body,
        turn.c.evaluation_id,
        turn.c.outcome,
        evaluation.c.speedup,
        sa.func.coalesce(_log.c.body, ""),
        turn.c.reward,
        turn.c.fault,
    )
    .join_from(turn, tokens_table)
    .outerjoin(_kernel, turn.c.kernel_sha == _kernel.c.sha)
    .outerjoin(evaluation, turn.c.evaluation_id == evaluation.c.id)
    .outerjoin(_log, evaluation.c.log_sha == _log.c.sha)
    .where(turn.c.trajectory_id == bindparam("trajectory_id"))
    .order_by(turn.c.ordinal)
)

_PLACE = sa.select(turn.c.trajectory_id, turn.c.state).where(turn.c.id == bindparam("turn"))
_IMPLEMENT = turn.update().where(turn.c.id == bindparam("turn"), turn.c.state == "suggested")
_SETTLE = (
    turn.update()
    .where(turn.c.id == bindparam("turn"), turn.c.state != "settled")
    .values(
        state="settled",
        settled_at=now(),
        kernel_sha=sa.func.coalesce(turn.c.kernel_sha, bindparam("made")),
        coder_call_id=sa.func.coalesce(turn.c.coder_call_id, bindparam("paid")),
        evaluation_id=sa.func.coalesce(turn.c.evaluation_id, bindparam("judged")),
    )
)


def next_ordinal(conn: sa.Connection, run_id: int) -> int:
    """Ordinal of the group that `open_group` would open."""
    query = sa.select(sa.func.max(rollout_group.c.ordinal)).where(rollout_group.c.run_id == run_id)
    last = conn.execute(query).scalar_one()
    return 0 if last is None else last + 1


def open_group(
    conn: sa.Connection, run_id: int, problem_id: int, device: str, size: int, lease_s: float
) -> Group:
    """The run's next group with its open trajectories, leased to the caller for `lease_s` seconds."""
    lock = sa.select(run.c.id).where(run.c.id == run_id).with_for_update(key_share=True)
    conn.execute(lock).scalar_one()
    ordinal, lease = next_ordinal(conn, run_id), _token()
    row = {"run_id": run_id, "ordinal": ordinal, "problem_id": problem_id, "device": device, "size": size}
    new = rollout_group.insert().values(state="open", lease=lease, lease_until=after(lease_s), **row)
    group_id = conn.execute(new.returning(rollout_group.c.id)).scalar_one()
    rows = [{"group_id": group_id, "member": member, "state": "open"} for member in range(size)]
    conn.execute(trajectory.insert(), rows)
    return Group(group_id, run_id, ordinal, problem_id, device, size, "open", lease)


def claim_group(conn: sa.Connection, run_id: int, lease_s: float) -> Group | None:
    """Take over the oldest open group whose holder went silent, to resume it."""
    g = rollout_group.alias()
    oldest = (
        sa.select(g.c.id)
        .where(g.c.run_id == run_id, g.c.state == word("open"), g.c.lease_until <= now())
        .order_by(g.c.ordinal)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    lease = _token()
    statement = (
        rollout_group.update()
        .where(rollout_group.c.id == oldest.scalar_subquery())
        .values(lease=lease, lease_until=after(lease_s))
        .returning(*_GROUP)
    )
    row = fetch_one(conn, statement)
    if row is None:
        return None
    events.log(conn, "group_resumed", "group", row.id, "collect")
    return Group(*row)


def renew_group(conn: sa.Connection, group_id: int, lease: str, lease_s: float) -> None:
    """Keep an open group for `lease_s` more seconds; 0 lets go of it. A finished group needs no lease.

    Raises LeaseLost when another collector has taken the group over.
    """
    own = rollout_group.update().where(rollout_group.c.id == group_id, rollout_group.c.lease == lease)
    if conn.execute(own.values(lease_until=after(lease_s))).rowcount == 0:
        state = conn.execute(
            sa.select(rollout_group.c.state).where(rollout_group.c.id == group_id)
        ).scalar_one()
        if state == "open":
            raise LeaseLost(
                f"Group {group_id} belongs to another collector now.", "Nothing to do: it goes on there."
            )


def trajectories(conn: sa.Connection, group_id: int) -> list[Trajectory]:
    """By member."""
    columns = [trajectory.c[name] for name in Trajectory.__slots__]
    query = sa.select(*columns).where(trajectory.c.group_id == group_id).order_by(trajectory.c.member)
    return [Trajectory(*row) for row in fetch(conn, query)]


def turns(conn: sa.Connection, trajectory_id: int) -> list[StoredTurn]:
    """By ordinal."""
    return [StoredTurn(*row) for row in fetch(conn, _TURNS, trajectory_id=trajectory_id)]


def record_suggestions(conn: sa.Connection, suggested: Sequence[SuggestedTurn]) -> list[int]:
    """Store what the policy read and said, before anything is paid for it. The new ids, in the same order.

    Raises LeaseLost when one of the turns is there already: another collector plays this group.
    """
    addresses = blobs.put_all(conn, (s.prompt for s in suggested))
    return [_insert_turn(conn, s, addresses[s.prompt]) for s in suggested]


def _insert_turn(conn: sa.Connection, s: SuggestedTurn, prompt_sha: str) -> int:
    row = {
        "trajectory_id": s.trajectory_id,
        "ordinal": s.ordinal,
        "state": "suggested",
        "policy_version_id": s.policy_version_id,
        "prompt_sha": prompt_sha,
        "prompt_template": s.prompt_template,
        "suggestion": s.suggestion,
    }
    turn_id = add_if_new(conn, turn, row)
    if turn_id is None:
        raise _taken_over(f"turn {s.ordinal} of trajectory {s.trajectory_id}")
    t = s.tokens
    said = {
        "turn_id": turn_id,
        "codec": tokens.CODEC,
        "data": tokens.encode(t.prompt, t.completion, t.logprobs),
        "prompt_len": len(t.prompt),
        "completion_len": len(t.completion),
        "sampling": t.sampling,
        "finish_reason": t.finish_reason,
    }
    conn.execute(tokens_table.insert(), said)
    return turn_id


def record_kernel(
    conn: sa.Connection,
    turn_id: int,
    call: CoderCall | None,
    kernel: str,
    *,
    problem_id: int,
    harness: str,
    device: str,
    round: int = 0,
    rank: int = 0,
) -> int:
    """Store the coder's answer and queue its evaluation; the evaluation's id.

    Repeating it is harmless. Raises LeaseLost when the turn has gone on with another kernel.
    """
    addresses = blobs.put_all(conn, [kernel, *ledger.texts(call)])
    call_id = ledger.record(conn, call, addresses)
    sha = addresses[kernel]
    job = queue.enqueue(conn, problem_id, sha, harness, device, round, rank)
    row = {"state": "evaluating", "kernel_sha": sha, "coder_call_id": call_id, "evaluation_id": job}
    if conn.execute(_IMPLEMENT, {"turn": turn_id, **row}).rowcount == 0:
        stored = conn.execute(sa.select(turn.c.evaluation_id).where(turn.c.id == turn_id)).scalar_one()
        if stored != job:
            raise _taken_over(f"turn {turn_id}")
    return job


def settle(
    conn: sa.Connection,
    turn_id: int,
    *,
    reward: float | None,
    outcome: str | None,
    fault: str | None,
    kernel: str | None = None,
    call: CoderCall | None = None,
    call_id: int | None = None,
    evaluation_id: int | None = None,
    last: bool,
) -> None:
    """Give the turn its result: `reward` and `outcome`, or a `fault`. `last` closes its trajectory.

    `call_id` and `evaluation_id` are of a sample that is stored already.

    The last trajectory to close makes the group 'complete', or 'failed' when no turn of it has a reward.
    A settled turn stays as it is, so repeating the call is harmless.
    """
    trajectory_id, state = conn.execute(_PLACE, {"turn": turn_id}).one()
    if state != "settled":
        addresses = blobs.put_all(conn, [*([] if kernel is None else [kernel]), *ledger.texts(call)])
        row = {
            **{"reward": reward, "outcome": outcome, "fault": fault},
            "made": None if kernel is None else addresses[kernel],
            "paid": call_id if call is None else ledger.record(conn, call, addresses),
            "judged": evaluation_id,
        }
        if conn.execute(_SETTLE, {"turn": turn_id, **row}).rowcount == 0:
            raise _taken_over(f"turn {turn_id}")
    if last:
        _close_trajectory(conn, trajectory_id)


def _close_trajectory(conn: sa.Connection, trajectory_id: int) -> None:
    close = trajectory.update().where(trajectory.c.id == trajectory_id, trajectory.c.state == "open")
    group_id = conn.execute(
        close.values(state="closed").returning(trajectory.c.group_id)
    ).scalar_one_or_none()
    if group_id is None:
        return
    # Only with the group's row locked is it certain who closes the last trajectory.
    lock = sa.select(rollout_group.c.id).where(rollout_group.c.id == group_id).with_for_update(key_share=True)
    conn.execute(lock).scalar_one()
    in_group = trajectory.c.group_id == group_id
    if conn.execute(
        sa.select(trajectory.c.id).where(in_group, trajectory.c.state == "open").limit(1)
    ).first():
        return
    rewarded = sa.select(turn.c.id).join(trajectory).where(in_group, turn.c.reward.is_not(None)).limit(1)
    state = "complete" if conn.execute(rewarded).first() else "failed"
    finish = rollout_group.update().where(rollout_group.c.id == group_id)
    conn.execute(finish.values(state=state, lease=None, lease_until=None, finished_at=now()))
    events.log(conn, f"group_{state}", "group", group_id, "collect")


def ahead(conn: sa.Connection, run_id: int, max_off_policy_steps: int) -> dict[str, int]:
    """Groups that are `open` and `fresh` (complete, to be trained, not stale); `trainer_step`.

    Costs the same however long the run is: finished groups are not looked at.
    """
    g, p = rollout_group, policy_version
    is_open = (g.c.run_id == run_id, g.c.state == word("open"))
    step = conn.execute(sa.select(sa.func.max(p.c.step)).where(p.c.run_id == run_id)).scalar_one() or 0
    return {
        "open": conn.execute(sa.select(sa.func.count()).select_from(g).where(*is_open)).scalar_one(),
        "fresh": training.ready(conn, run_id, step, max_off_policy_steps),
        "trainer_step": step,
    }


def counts(conn: sa.Connection, run_id: int, max_off_policy_steps: int = 0) -> dict[str, int]:
    """What `ahead` says, and all groups that are `complete` and `failed`."""
    g = rollout_group
    by_state = sa.select(g.c.state, sa.func.count()).where(g.c.run_id == run_id).group_by(g.c.state)
    known = ahead(conn, run_id, max_off_policy_steps)
    return {"complete": 0, "failed": 0, **dict(fetch(conn, by_state)), **known}


def solved(conn: sa.Connection, run_id: int, groups: int) -> dict[int, tuple[int, int]]:
    """By problem id: turns with a correct kernel that is faster than the reference, and all turns with a reward,
    in the run's last `groups` groups.
    """
    recent = (
        sa.select(rollout_group.c.id, rollout_group.c.problem_id)
        .where(rollout_group.c.run_id == run_id)
        .order_by(rollout_group.c.ordinal.desc())
        .limit(groups)
        .subquery()
    )
    won = sa.case((sa.and_(turn.c.outcome == "correct", evaluation.c.speedup > 1.0), 1), else_=0)
    query = (
        sa.select(recent.c.problem_id, sa.func.sum(won), sa.func.count())
        .join_from(recent, trajectory, trajectory.c.group_id == recent.c.id)
        .join(turn, turn.c.trajectory_id == trajectory.c.id)
        .outerjoin(evaluation, turn.c.evaluation_id == evaluation.c.id)
        .where(turn.c.reward.is_not(None))
        .group_by(recent.c.problem_id)
    )
    return {problem_id: (int(wins), count) for problem_id, wins, count in fetch(conn, query)}


def call_usd(conn: sa.Connection, run_id: int) -> float:
    """US dollars that the run's coder calls cost; an answer that several turns share counts once."""
    of_run = sa.select(trajectory.c.id).join(rollout_group).where(rollout_group.c.run_id == run_id)
    turns = turn.c.trajectory_id.in_(of_run)
    used = sa.union(
        sa.select(turn.c.coder_call_id).where(turns),
        sa.select(turn_sample.c.coder_call_id).join(turn).where(turns),
    )
    return float(
        conn.execute(sa.select(sa.func.sum(coder_call.c.usd)).where(coder_call.c.id.in_(used))).scalar_one()
        or 0
    )


def _taken_over(what: str) -> LeaseLost:
    return LeaseLost(f"Another collector has written {what}.", "Nothing to do: the group goes on there.")


def _token() -> str:
    return secrets.token_hex(8)
