"""`kpipe replay train --into NAME`: other settings on stored rollouts, as a new run that knows its lineage.

Update n of the new run learns from the groups of the n-th chosen update of its source. The rollouts are
those of the source's policies, so the further the new policy goes its own way, the less they say about
it: ESS and mismatch KL of every update tell how much.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kpipe import __version__
from kpipe.config import Config, RewardConfig, from_json, keys, load, value_of
from kpipe.domain.names import check_run_name
from kpipe.domain.near import near
from kpipe.errors import UsageError
from kpipe.policy.files import checkpoint_files, ensure_directory
from kpipe.policy.owner import claim, refuse_taken
from kpipe.replay.lookup import near_ids
from kpipe.replay.scoring import LINEAGE, RECOMPUTED, STORED, recomputed, rewarded
from kpipe.store import events, policies, runs, training
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run, Sample, TrainStep
from kpipe.train import checkpoint
from kpipe.train.folder import CheckpointFolder
from kpipe.train.trainer import Trainer, stop_on_signals


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps` are the updates of the source whose groups are used, in order; no `problems` means all."""

    source: Run
    start: PolicyVersion
    steps: list[int]
    problems: list[str]
    config: Config
    rewards: str

    def lineage(self) -> dict[str, Any]:
        """What the new run has from where; its configuration says the rest."""
        source = from_json(self.source.config)
        changed = {
            key: [_plain(value_of(source, key)), _plain(value_of(self.config, key))]
            for key in keys()
            if value_of(source, key) != value_of(self.config, key)
        }
        return {
            "from": self.source.name,
            "policy": self.start.step,
            "steps": self.steps,
            "problems": self.problems,
            "rewards": self.rewards,
            "changes": changed,
            "kpipe": __version__,
        }


def make_plan(
    db: Database,
    source: Run,
    *,
    overrides: Sequence[str] = (),
    reward: RewardConfig | None = None,
    problems: Sequence[str] = (),
    first: int | None = None,
    last: int | None = None,
) -> Plan:
    """Raises UsageError, ConfigError."""
    config = _changed(from_json(source.config), overrides, reward)
    committed = [s.step for s in db.read(training.committed, source.id)]
    chosen = [s for s in committed if (first or 1) <= s <= (last or committed[-1])]
    if not chosen:
        raise UsageError(
            f"Run {source.name!r} has no updates from {first or 1} to {last or 'its last'}"
            f" whose rollouts could be used.{near_ids(first or 1, committed)}",
            "Change --from and --to, or train the run first.",
        )
    known = db.read(training.problem_names, source.id)
    for name in problems:
        if name not in known.values():
            raise UsageError(
                f"Run {source.name!r} has trained on no problem {name!r}.{near(name, list(known.values()))}",
                f"Its problems: {', '.join(sorted(set(known.values())))}.",
            )
    by_step = db.read(training.problems_by_step, source.id)
    steps = [s for s in chosen if not problems or by_step.get(s, set()) & set(problems)]
    if not steps:
        raise UsageError("None of these updates saw these problems.", "Change --problems, --from or --to.")
    version = db.read(policies.get, source.id, chosen[0] - 1)
    if version is None or checkpoint.weights_damage(version):
        raise UsageError(
            f"The checkpoint before update {chosen[0]} of run {source.name!r} is gone.",
            "Leave --from out to start with the base policy.",
        )
    same = config.reward == from_json(source.config).reward and not db.read(recomputed, source)
    config = config.model_copy(update={"train": config.train.model_copy(update={"max_steps": len(steps)})})
    return Plan(source, version, steps, sorted(problems), config, STORED if same else RECOMPUTED)


def _changed(config: Config, overrides: Sequence[str], reward: RewardConfig | None) -> Config:
    """The source's configuration with what was asked for. Raises ConfigError, UsageError."""
    tree = config.model_dump(mode="json")
    if reward is not None:
        tree["reward"] = reward.model_dump(mode="json")
    loaded = load(overrides=overrides, environ={})
    for key in (k for k in keys() if loaded.origin[k] == "--set"):
        section, _, name = key.partition(".")
        if section not in ("train", "reward") or key in ("train.batch_size", "train.max_steps"):
            raise UsageError(
                f"--set {key} cannot be changed on stored rollouts.",
                "Change train.* or reward.*; --from, --to and --problems choose the rollouts.",
            )
        tree[section][name] = value_of(loaded.config, key)
    return from_json(tree)


def carry_out(db: Database, plan: Plan, into: str) -> tuple[Run, list[TrainStep]]:
    """Train the new run; one that was stopped goes on. Its updates so far. Raises KpipeError."""
    check_run_name(into)
    run = db.read(runs.get, into)
    if run is not None and db.read(events.details, LINEAGE, "run", run.id) != [plan.lineage()]:
        raise UsageError(
            f"There is a run {into!r} already, and it is another one.", "Choose another name for --into."
        )
    folder = CheckpointFolder(plan.config.output_dir, into)
    torch.set_num_threads(plan.config.train.threads or len(os.sched_getaffinity(0)))
    with stop_on_signals() as stop, folder.locked():
        if run is None:
            refuse_taken(folder.root)
            base, made = folder.path(0), _copy(plan.start, folder.path(0))
            run = db.write(_create, plan, into, str(base), made)
            claim(folder.root, db.read(runs.identity, run.id), known=True)
        WhatIf(db, run, plan.config, folder, stop, plan).run_to_end()
    return run, db.read(training.committed, run.id)


class WhatIf(Trainer):
    """A trainer that takes the groups of another run's updates."""

    def __init__(
        self, db: Database, run: Run, config: Config, folder: CheckpointFolder, stop: Any, plan: Plan
    ) -> None:
        super().__init__(db, run, config, folder, stop)
        self.plan = plan

    def wait_for_groups(self, step: int) -> list[list[Sample]]:
        """Those of the plan's next update; nobody has to be waited for."""
        self.rescoring = self.db.read(training.last_rescoring)
        groups = self.db.read(training.taken, self.plan.source.id, self.plan.steps[step])
        if self.plan.problems:
            names = self.db.read(training.problem_names, self.plan.source.id)
            groups = [g for g in groups if names[g[0].problem_id] in self.plan.problems]
        if self.plan.rewards == RECOMPUTED:
            groups = self.db.read(rewarded, groups, self.config.reward)
        return groups

    def stale_groups(self, step: int) -> list[int]:
        """The groups are not this run's to leave out."""
        return []


def _create(conn: Any, plan: Plan, into: str, base: str, digest: str) -> Run:
    run = runs.create(conn, into, plan.config.model_dump(mode="json"), plan.source.seed, __version__)
    policies.add(conn, run.id, 0, base, digest)
    events.log(conn, LINEAGE, "run", run.id, "replay", plan.lineage())
    return run


def _copy(version: PolicyVersion, path: Path) -> str:
    """The checkpoint under another name, so that the source may prune its own; its digest."""

    def build(partial: Path) -> None:
        for file in checkpoint_files(Path(version.path)):
            try:
                os.link(file.resolve(), partial / file.name)
            except OSError:  # another file system
                shutil.copyfile(file, partial / file.name)

    return ensure_directory(path, f"{version.path} {version.digest}", build)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
