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
from types import MappingProxyType
from typing import Any

from kpipe.config import RewardConfig, from_json, load, presets
from kpipe.domain.near import near
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome
from kpipe.errors import UsageError
from kpipe.store import belongings, events, runs, scores, training
from kpipe.store.records import JudgedTurn, Run, Sample, SampleChange, TrainedSample, TurnChange
from kpipe.train.batch import Scored, score

LINEAGE = "lineage"
STORED, RECOMPUTED = "stored", "recomputed"


@dataclass(frozen=True, slots=True)
class Rescoring:
    """`judged` are all settled turns that were looked at; `changes` and `samples` what becomes different.

    `runs` are those that played or trained a changed turn; a what-if run has trained turns of its source.
    """

    formula: str
    judged: Sequence[JudgedTurn]
    changes: Sequence[TurnChange]
    samples: Sequence[SampleChange]
    runs: Sequence[Run]


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
    coder = from_json(run.config).coder
    if coder.samples > 1 and coder.score == "mean":
        raise UsageError(
            f"Run {run.name!r} gives each suggestion the mean reward of {coder.samples} kernels.",
            "Such rewards cannot be computed again yet: table turn_sample has the samples.",
        )
    changes = [c for turn in judged if (c := _change(turn, turn.outcome, cfg)) is not None]
    learners = [r for r in trained_on(conn, [run]) if r.id == run.id or not recomputed(conn, r)]
    return _found(conn, name, judged, changes, learners)


def trained_on(conn: Any, played: Sequence[Run]) -> list[Run]:
    """These runs, and those that were trained on their turns, oldest first."""
    wanted = {r.id for r in played}.union(*(belongings.users(conn, r.id) for r in played))
    return [r for r in runs.list_(conn) if r.id in wanted]


def recomputed(conn: Any, run: Run) -> bool:
    """True for a what-if run whose rewards are not those that its turns have stored."""
    return any(d["rewards"] == RECOMPUTED for d in events.details(conn, LINEAGE, "run", run.id))


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
    changes = [c for found in by_run.values() for c in found]
    learners = trained_on(conn, [run for run in all_runs if run.id in by_run])
    return _found(conn, f"hack: {what}", judged, changes, learners)


def rewarded(
    conn: Any,
    groups: Sequence[Sequence[Sample]],
    cfg: RewardConfig,
    outcomes: Mapping[int, str] = MappingProxyType({}),
) -> list[list[Sample]]:
    """The samples with the rewards that `cfg` gives to their outcomes: stored, or by turn in `outcomes`."""
    judged = scores.judged_groups(conn, [group[0].group_id for group in groups])
    new = {turn.id: _reward(turn, outcomes.get(turn.id, turn.outcome), cfg) for turn in judged}
    return _with_rewards(groups, new)


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


def _found(
    conn: Any, name: str, judged: Sequence[JudgedTurn], changes: Sequence[TurnChange], learners: Sequence[Run]
) -> Rescoring:
    """What the changes do to every update of `learners` that looked at such a turn."""
    changed, samples = {c.turn.id: c for c in changes}, list[SampleChange]()
    touched = {c.turn.run_id for c in changes}
    for run in learners if changes else ():
        for step in training.committed(conn, run.id):
            stored = {s.turn_id: s for s in training.trained(conn, run.id, step.step)}
            if not changed.keys().isdisjoint(stored):
                touched.add(run.id)
                samples += _samples(conn, run, step.step, stored, changed)
    return Rescoring(name, judged, changes, samples, [r for r in learners if r.id in touched])


def _samples(
    conn: Any, run: Run, step: int, stored: Mapping[int, TrainedSample], changed: Mapping[int, TurnChange]
) -> list[SampleChange]:
    """Returns and advantages of an update, scored as the run's trainer scores."""
    cfg, groups = from_json(run.config), training.taken(conn, run.id, step)
    if recomputed(conn, run):
        groups = rewarded(conn, groups, cfg.reward, {i: c.outcome for i, c in changed.items()})
    else:
        groups = _with_rewards(groups, {i: c.reward for i, c in changed.items()})
    out = []
    for s in score(groups, cfg.train):
        old = stored[s.sample.turn_id]
        before, after = (old.return_, old.advantage), (s.return_, _advantage(s, old))
        if before != after:
            out.append(SampleChange(run.id, step, old.turn_id, before, after))
    return out


def _advantage(new: Scored, old: TrainedSample) -> float | None:
    """None for a sample that its update left out; 0 for a trained one that now has no spread to learn from."""
    return None if old.drop_reason else new.advantage or 0.0


def _with_rewards(groups: Sequence[Sequence[Sample]], new: Mapping[int, float | None]) -> list[list[Sample]]:
    return [[replace(s, reward=new.get(s.turn_id, s.reward)) for s in group] for group in groups]
