"""Rewards, returns and advantages again: stored verdicts under another formula, or kernels found to be hacks.

Only what was earned is computed anew. `weight` and `drop_reason` of a sample tell what its update did, and
that stays as it was: a sample that was left out keeps having no advantage, one that was trained keeps one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kpipe.config import RewardConfig, from_json, load, presets
from kpipe.domain.near import near
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome
from kpipe.errors import UsageError
from kpipe.store import runs, scores, training
from kpipe.store.records import JudgedTurn, Run, Sample, SampleChange, TrainedSample, TurnChange
from kpipe.train.batch import Scored, score


@dataclass(frozen=True, slots=True)
class Rescoring:
    """`judged` are all settled turns that were looked at; `changes` and `samples` what becomes different."""

    formula: str
    judged: Sequence[JudgedTurn]
    changes: Sequence[TurnChange]
    samples: Sequence[SampleChange]


@dataclass(frozen=True, slots=True)
class ProblemMeans:
    """Mean reward of the rewarded turns on a problem."""

    problem: str
    turns: int
    changed: int
    before: float
    after: float


def read_formula(name: str) -> RewardConfig:
    """The [reward] section of a preset or of a TOML file. Raises ConfigError for what is neither."""
    if name not in presets() and (name.endswith(".toml") or Path(name).is_file()):
        return load(file=Path(name), environ={}).config.reward
    return load(preset=name, environ={}).config.reward


def under_formula(conn: Any, run: Run, name: str, cfg: RewardConfig) -> Rescoring:
    """The run's turns under `cfg`. Raises UsageError for a run without turns."""
    judged = scores.judged_run(conn, run.id)
    if not judged:
        raise UsageError(
            f"Run {run.name!r} has no settled turns of its own.",
            "Choose the run that collected them, or wait until it has some.",
        )
    changes = [c for turn in judged if (c := _change(turn, turn.outcome, cfg)) is not None]
    return Rescoring(name, judged, changes, _samples(conn, run, changes))


def with_hacks(conn: Any, what: str) -> Rescoring:
    """All runs, where every kernel with this finding, or of this digest, is a hack.

    Verdicts are shared by all runs. A kernel that does not even load stays what it is.
    Raises UsageError when nothing stored is meant.
    """
    kernels = scores.kernels_meant(conn, what)
    if not kernels:
        raise UsageError(
            f"No stored kernel has a finding {what!r} or a digest that begins so."
            f"{near(what, scores.rules(conn))}",
            "Give a rule (SELECT DISTINCT rule FROM finding) or at least 8 digits of a kernel's digest.",
        )
    all_runs = runs.list_(conn)
    judged = [turn for run in all_runs for turn in scores.judged_run(conn, run.id)]
    by_run: dict[int, list[TurnChange]] = defaultdict(list)
    formulas = {run.id: from_json(run.config).reward for run in all_runs}
    for turn in judged:
        hack = turn.kernel_sha in kernels and scores.may_be_hack(turn.outcome)
        if hack and (change := _change(turn, Outcome.HACK.value, formulas[turn.run_id])):
            by_run[turn.run_id].append(change)
    samples = [s for run in all_runs if run.id in by_run for s in _samples(conn, run, by_run[run.id])]
    return Rescoring(f"hack: {what}", judged, [c for found in by_run.values() for c in found], samples)


def rewarded(conn: Any, groups: Sequence[Sequence[Sample]], cfg: RewardConfig) -> list[list[Sample]]:
    """The samples with the rewards that `cfg` gives to their stored outcomes."""
    judged = scores.judged_groups(conn, [group[0].group_id for group in groups])
    return _with_rewards(groups, {turn.id: _reward(turn, turn.outcome, cfg) for turn in judged})


def means(found: Rescoring) -> list[ProblemMeans]:
    """By problem, those that change most first."""
    new = {c.turn.id: c.reward for c in found.changes}
    by_problem: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for turn in found.judged:
        if turn.reward is not None:
            by_problem[turn.problem].append((turn.id, turn.reward))
    rows = [
        ProblemMeans(
            problem,
            len(turns),
            sum(i in new for i, _ in turns),
            fmean(r for _, r in turns),
            fmean(new.get(i, r) for i, r in turns),
        )
        for problem, turns in by_problem.items()
    ]
    return sorted(rows, key=lambda row: (-abs(row.after - row.before), row.problem))


def largest(found: Rescoring, n: int) -> list[TurnChange]:
    """The `n` turns whose reward moves most."""
    return sorted(found.changes, key=lambda c: (-abs(c.reward - (c.turn.reward or 0.0)), c.turn.id))[:n]


def turned(samples: Sequence[SampleChange]) -> int:
    """How many advantages change their sign: the update pushed these samples the other way."""
    return sum((s.before[1] or 0.0) * (s.after[1] or 0.0) < 0 for s in samples)


def _change(turn: JudgedTurn, outcome: str | None, cfg: RewardConfig) -> TurnChange | None:
    """None for a fault, and where all stays as it is."""
    new = _reward(turn, outcome, cfg)
    if outcome is None or new is None or (outcome, new) == (turn.outcome, turn.reward):
        return None
    return TurnChange(turn, outcome, new)


def _reward(turn: JudgedTurn, outcome: str | None, cfg: RewardConfig) -> float | None:
    return None if outcome is None else reward(Outcome(outcome), turn.speedup, turn.speedup_low, cfg)


def _samples(conn: Any, run: Run, changes: Sequence[TurnChange]) -> list[SampleChange]:
    """Returns and advantages of every committed update, scored as the run's trainer scores."""
    new: dict[int, float | None] = {c.turn.id: c.reward for c in changes}
    cfg = from_json(run.config).train
    out = []
    for step in training.committed(conn, run.id) if new else ():
        stored = {s.turn_id: s for s in training.trained(conn, run.id, step.step)}
        for s in score(_with_rewards(training.taken(conn, run.id, step.step), new), cfg):
            old = stored[s.sample.turn_id]
            before, after = (old.return_, old.advantage), (s.return_, _advantage(s, old))
            if before != after:
                out.append(SampleChange(run.id, step.step, old.turn_id, before, after))
    return out


def _advantage(new: Scored, old: TrainedSample) -> float | None:
    """None for a sample that its update left out; 0 for a trained one that now has no spread to learn from."""
    return None if old.drop_reason else new.advantage or 0.0


def _with_rewards(groups: Sequence[Sequence[Sample]], new: Mapping[int, float | None]) -> list[list[Sample]]:
    return [[replace(s, reward=new.get(s.turn_id, s.reward)) for s in group] for group in groups]
