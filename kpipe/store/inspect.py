"""What a run has achieved so far: the questions of the live progress and of the summary."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import sqlalchemy as sa

from kpipe.store import rollouts, training
from kpipe.store.records import BestKernel
from kpipe.store.sql import fetch

# Samples that an update looked at, trained or not; stale ones were never compared with anything.
_TRAINED = (
    "train_sample s JOIN turn u ON u.id = s.turn_id AND (s.drop_reason IS NULL OR s.drop_reason <> 'stale')"
)

_REWARDS = sa.text(
    f"SELECT s.step, u.reward FROM {_TRAINED} "  # noqa: S608 - no value in it
    "WHERE s.run_id = :run_id AND u.reward IS NOT NULL ORDER BY s.step, u.id"
)
_BEST_OF_TRAJECTORY = sa.text(
    "SELECT s.step, max(CASE WHEN u.outcome = 'correct' THEN e.speedup ELSE 0.0 END) "  # noqa: S608
    f"FROM {_TRAINED} LEFT JOIN evaluation e ON e.id = u.evaluation_id "
    "WHERE s.run_id = :run_id AND s.step >= :since AND u.reward IS NOT NULL "
    "GROUP BY s.step, u.trajectory_id ORDER BY s.step, u.trajectory_id"
)
_MEAN_REWARDS = sa.text(
    f"SELECT s.step, avg(u.reward) FROM {_TRAINED} "  # noqa: S608
    "WHERE s.run_id = :run_id AND u.reward IS NOT NULL GROUP BY s.step ORDER BY s.step"
)
_BEST_KERNELS = sa.text(
    "SELECT problem, speedup, speedup_low, speedup_high, kernel_sha, time_ms, baseline_ms "
    "FROM v_best WHERE run_id = :run_id ORDER BY level, problem"
)
_SUGGESTIONS = sa.text(
    f"SELECT u.suggestion FROM {_TRAINED} WHERE s.run_id = :run_id AND s.step = :step ORDER BY u.id"  # noqa: S608
)
_TURNS = sa.text(
    "SELECT count(*) FROM turn u JOIN trajectory t ON t.id = u.trajectory_id "
    "JOIN rollout_group g ON g.id = t.group_id WHERE g.run_id = :run_id AND u.state = 'settled'"
)
_EVALUATIONS = sa.text(
    "SELECT e.state, count(DISTINCT e.id) FROM turn u JOIN trajectory t ON t.id = u.trajectory_id "
    "JOIN rollout_group g ON g.id = t.group_id JOIN evaluation e ON e.id = u.evaluation_id "
    "WHERE g.run_id = :run_id GROUP BY e.state"
)


def progress(conn: sa.Connection, run_id: int) -> dict[str, Any]:
    """Where the run stands.

    Groups: `groups_open`, `groups_complete`, `groups_failed`. Settled `turns`. Evaluations: `queued`,
    `running`, `done`, `failed`. Of the last update: `step`, `metrics`, `mean_reward`, `mean_best` (the mean
    best speedup of a trajectory). `reward_by_step` (means), `best` speedup by problem, `coder_usd`.
    """
    groups = rollouts.counts(conn, run_id)
    rewards = dict(fetch(conn, _MEAN_REWARDS, run_id=run_id))
    steps = training.steps(conn, run_id)
    step, metrics = steps[-1] if steps else (0, {})
    bests = best_speedups_by_step(conn, run_id, step).get(step)
    return {
        **{f"groups_{state}": groups[state] for state in ("open", "complete", "failed")},
        "turns": settled_turns(conn, run_id),
        **{"queued": 0, "running": 0, "done": 0, "failed": 0},
        **dict(fetch(conn, _EVALUATIONS, run_id=run_id)),
        "step": step,
        "metrics": metrics,
        "reward_by_step": rewards,
        "mean_reward": rewards.get(step),
        "mean_best": fmean(bests) if bests else None,
        "best": {k.problem: k.speedup for k in best_kernels(conn, run_id)},
        "coder_usd": rollouts.call_usd(conn, run_id),
    }


def settled_turns(conn: sa.Connection, run_id: int) -> int:
    """Turns of the run that have a reward or a fault."""
    return int(conn.execute(_TURNS, {"run_id": run_id}).scalar_one())


def rewards_by_step(conn: sa.Connection, run_id: int) -> dict[int, list[float]]:
    """Rewards of the turns that each update was made from."""
    return _by_step(fetch(conn, _REWARDS, run_id=run_id))


def best_speedups_by_step(conn: sa.Connection, run_id: int, since: int = 0) -> dict[int, list[float]]:
    """Best correct speedup of each trajectory of each update from `since` on, 0.0 where nothing was correct.

    A trajectory without any reward says nothing about the policy and is left out.
    """
    return _by_step(fetch(conn, _BEST_OF_TRAJECTORY, run_id=run_id, since=since))


def best_kernels(conn: sa.Connection, run_id: int) -> list[BestKernel]:
    """The fastest correct kernel of each problem, by level and name."""
    return [BestKernel(*row) for row in fetch(conn, _BEST_KERNELS, run_id=run_id)]


def sample_suggestions(conn: sa.Connection, run_id: int, step: int, n: int) -> list[str]:
    """At most `n` different suggestions that update `step` was made from, spread evenly over its samples."""
    said = list(dict.fromkeys(text for (text,) in fetch(conn, _SUGGESTIONS, run_id=run_id, step=step)))
    return [said[i * len(said) // n] for i in range(n)] if len(said) > n else said


def _by_step(rows: list[Any]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for step, value in rows:
        found[step].append(value)
    return dict(found)
