"""`kpipe replay train`: a run's committed updates once more, compared step by step. Nothing is stored."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kpipe import __version__
from kpipe.config import Config, from_json
from kpipe.errors import UsageError
from kpipe.policy.files import digest
from kpipe.replay.compare import (
    Difference,
    changes,
    metric_differences,
    reasons,
    sample_differences,
    tensor_differences,
    value_difference,
    within,
)
from kpipe.replay.lookup import near_ids
from kpipe.replay.scoring import recomputed, rewarded
from kpipe.store import events, policies, training
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run, TrainStep
from kpipe.train import checkpoint
from kpipe.train.checkpoint import TrainerState
from kpipe.train.learner import Learner
from kpipe.train.report import environment
from kpipe.train.step import Made, make_update, turns_of
from kpipe.train.tally import Stopwatch

TOLERANCE = 1e-3
"""Between machines or builds: |stored - again| <= this x max(1, |stored|). On the same build: 0."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One update, twice. `first` is its first difference, None when all is equal bit for bit.

    `accepted` is True when no difference exceeds `tolerance`. `compared` says what stood for the
    parameters: 'tensors' of the stored checkpoint, or its 'digest' where it has been pruned. A digest says
    nothing about rounding, so that in another environment it is 'metrics only'.
    """

    step: int
    stored: dict[str, Any]
    again: dict[str, Any]
    compared: str
    tolerance: float
    first: Difference | None
    accepted: bool
    why: str


class Retraining:
    """The updates `first`..`last` of a run; None means from the earliest, to the latest."""

    def __init__(self, db: Database, run: Run, first: int | None, last: int | None) -> None:
        self.db, self.run = db, run
        self.config: Config = from_json(run.config)
        self.versions = db.read(policies.list_, run.id)
        self.committed = {s.step: s for s in db.read(training.committed, run.id)}
        self.recomputed = db.read(recomputed, run)
        self.steps = self._range(first, last)
        self.start = next(v for v in self.versions if v.step == self.steps[0] - 1)
        _check_start(self.start, self.versions, self.committed)

    def run_all(self, told: Callable[[Replayed], None] = lambda _: None) -> list[Replayed]:
        """Up to the first update that differs by more than rounding. Raises KpipeError."""
        done: list[Replayed] = []
        self._use_threads(self.committed[self.steps[0]])
        learner = checkpoint.resume(self.start, self.versions, self.config.train)
        for step in self.steps:
            done.append(self._replay(learner, self.committed[step]))
            told(done[-1])
            if not done[-1].accepted:
                break
        return done

    def _range(self, first: int | None, last: int | None) -> range:
        if not self.committed:
            raise UsageError(f"Run {self.run.name!r} has no updates yet.", "Train it first: kpipe run.")
        low = min(self.committed) if first is None else first
        high = max(self.committed) if last is None else last
        for option, step in (("--from", low), ("--to", high)):
            if step not in self.committed:
                known = sorted(self.committed)
                raise UsageError(
                    f"Run {self.run.name!r} has no update {step}.{near_ids(step, known)}",
                    f"{option} takes {known[0]} to {known[-1]}.",
                )
        if low > high:
            raise UsageError(f"--from {low} is after --to {high}.", "Give the earlier update to --from.")
        return range(low, high + 1)

    def _replay(self, learner: Learner, stored: TrainStep) -> Replayed:
        self._use_threads(stored)
        then, now = stored.metrics.get("environment"), environment(self.config, learner.device)
        groups = self.db.read(training.taken, self.run.id, stored.step)
        if self.recomputed:
            groups = self.db.read(rewarded, groups, self.config.reward)
        made = make_update(
            learner,
            groups,
            self.db.read(turns_of, groups),
            self.config,
            seed=self.run.seed,
            step=stored.step,
            watch=Stopwatch(learner.device),
        )
        tolerance = 0.0 if then is not None and not changes(then, now) else TOLERANCE
        compared, differences = self._differences(learner, stored, made, tolerance)
        first = next(differences, None)
        accepted = first is None or (
            within(first, tolerance) and all(within(d, tolerance) for d in differences)
        )
        why = reasons(first, then, now, self._notes()) if first else ""
        return Replayed(stored.step, stored.metrics, made.metrics, compared, tolerance, first, accepted, why)

    def _use_threads(self, stored: TrainStep) -> None:
        """Sums depend on how many threads make them."""
        if threads := stored.metrics.get("environment", {}).get("threads"):
            torch.set_num_threads(threads)

    def _differences(
        self, learner: Learner, stored: TrainStep, made: Made, tolerance: float
    ) -> tuple[str, Iterator[Difference]]:
        version = next(v for v in self.versions if v.step == stored.step)
        intact = checkpoint.weights_damage(version) is None
        compared = "tensors" if intact else "metrics only" if tolerance else "digest"

        def all_() -> Iterator[Difference]:
            if found := value_difference("batch hash", stored.batch_hash, made.batch_hash):
                yield found
            kept = self.db.read(training.trained, self.run.id, stored.step)
            yield from sample_differences(kept, made.samples)
            same_names = stored.metrics.get("environment", {}).get("kpipe") == __version__
            yield from metric_differences(stored.metrics, made.metrics, same_names=same_names)
            if compared == "tensors":
                yield from _parameters(learner, version)
            elif compared == "digest" and (
                found := value_difference("parameter digest", version.digest, self._digest(learner, stored))
            ):
                yield found

        return compared, all_()

    def _digest(self, learner: Learner, stored: TrainStep) -> str:
        """Of the checkpoint that the trainer would write now; its files name kpipe and torch."""
        state = TrainerState(stored.step, self.run.seed, __version__, torch.__version__)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.write(Path(folder), learner, Path(self.start.path), state)
            return digest(folder)

    def _notes(self) -> list[str]:
        """What the journal knows that changes a replay."""
        rescored = self.db.read(events.details, "rescored", "run", self.run.id)
        changed = self.db.read(events.details, "run_config_changed", "run", self.run.id)
        return [
            *(f"`kpipe replay score --apply` has changed rewards ({d['formula']})" for d in rescored[-1:]),
            *("the run's configuration was changed after its start" for _ in changed[:1]),
        ]


def _parameters(learner: Learner, version: PolicyVersion) -> Iterator[Difference]:
    return tensor_differences(checkpoint.stored_parameters(Path(version.path)), learner.trained())


def _check_start(
    start: PolicyVersion, versions: Sequence[PolicyVersion], committed: dict[int, TrainStep]
) -> None:
    """Raises UsageError, naming the updates that a replay can start with."""
    if (found := checkpoint.damage(start)) is None:
        return
    possible = [v.step + 1 for v in versions if v.step + 1 in committed and checkpoint.damage(v) is None]
    raise UsageError(
        f"Update {start.step + 1} cannot be the first: the checkpoint before it, {start.path}, is gone or"
        f" incomplete ({found}).",
        f"--from can be {', '.join(map(str, possible))}."
        if possible
        else "No checkpoint of this run is left.",
    )
