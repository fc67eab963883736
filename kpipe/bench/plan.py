"""What is measured: which policy, on which problems, and the run under which it is stored."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpipe import __version__, problems
from kpipe.config import Config, Loaded, from_json, keys, value_of
from kpipe.errors import UsageError
from kpipe.store import catalog, policies, runs
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run, StoredProblem

NONE = "none"
GREEDY = 1e-4
"""Temperature of greedy sampling: the likeliest token has all of the probability."""
SUGGESTION = "Make it as fast as you can."


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for; `samples` episodes of `turns` turns per problem."""

    split: str
    suite: str
    levels: tuple[int, ...]
    names: tuple[str, ...]
    samples: int
    turns: int
    greedy: bool
    suggestion: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`checkpoint` None is the coder alone, which is told `suggestion`."""

    label: str
    run: Run
    config: Config
    problems: list[StoredProblem]
    version: PolicyVersion
    checkpoint: Path | None
    suggestion: str


def make_plan(db: Database, policy: str, loaded: Loaded, wish: Wish) -> Plan:
    """Find or create the run of this measurement: the same wish has the same run, and is not measured twice.

    `policy` is RUN, RUN:STEP or none. Raises UsageError.
    """
    if policy == NONE:
        label, checkpoint, digest, base = "coder alone", None, NONE, loaded.config
    else:
        version, base = _find(db, policy, loaded)
        label, checkpoint, digest = (
            f"{policy.partition(':')[0]}:{version.step}",
            Path(version.path),
            version.digest,
        )
        if not checkpoint.is_dir():
            raise UsageError(
                f"The checkpoint of {label}, {checkpoint}, is gone.", "Choose another step, or copy it back."
            )
    config = _config(base, wish, alone=checkpoint is None)
    chosen = _problems(db, config)
    tree = config.model_dump(mode="json")
    asked = [digest, tree, wish.suggestion if checkpoint is None else "", [p.id for p in chosen]]
    short = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    name = f"bench-{re.sub(r'[^A-Za-z0-9.]+', '-', label)}-{wish.split}-{short}"
    run = db.read(runs.get, name) or db.write(runs.create, name, tree, config.seed, __version__)
    path = str(checkpoint) if checkpoint else NONE
    stored = db.write(policies.add, run.id, 0, path, digest)
    return Plan(label, run, config, chosen, stored, checkpoint, wish.suggestion)


def _find(db: Database, policy: str, loaded: Loaded) -> tuple[PolicyVersion, Config]:
    name, _, step = policy.partition(":")
    run = db.read(runs.get, name)
    if run is None:
        known = ", ".join(r.name for r in db.read(runs.list_)) or "none"
        raise UsageError(f"There is no run {name!r}; the database has: {known}.", "Write --policy RUN:STEP.")
    if step and not step.isdecimal():
        raise UsageError(
            f"{step!r} is no number of an update.", "Write --policy RUN:STEP, or RUN for the newest."
        )
    version = db.read(policies.get, run.id, int(step)) if step else db.read(policies.latest, run.id)
    if version is None:
        steps = ", ".join(str(v.step) for v in db.read(policies.list_, run.id)) or "none yet"
        raise UsageError(
            f"Run {name!r} has no such policy version; it has {steps}.", "Write --policy RUN:STEP."
        )
    return version, _over(from_json(run.config), loaded)


def _over(stored: Config, loaded: Loaded) -> Config:
    """The run's configuration with what the command line asks for."""
    tree: dict[str, Any] = stored.model_dump(mode="json")
    for key in keys():
        if loaded.asked_for(key):
            section, _, inner = key.rpartition(".")
            (tree[section] if section else tree)[inner] = value_of(loaded.config, key)
    return from_json(tree)


def _config(base: Config, wish: Wish, *, alone: bool) -> Config:
    tree = base.model_dump(mode="json")
    tree["problems"] |= {"suite": wish.suite, "split": wish.split, "levels": wish.levels, "names": wish.names}
    tree["collect"] |= {"group_size": wish.samples, "groups_per_step": 1, "max_steps_per_episode": wish.turns}
    tree["train"] |= {"batch_size": wish.samples}
    if wish.greedy and not alone:
        tree["policy"] |= {"temperature": GREEDY}
    return from_json(tree)


def _problems(db: Database, config: Config) -> list[StoredProblem]:
    c = config.problems
    if c.suite == problems.BUILTIN_SUITE:
        for problem in problems.builtin():
            db.write(catalog.add, problem)
    chosen = db.read(catalog.select, c.suite, c.split, c.levels, c.names)
    if not chosen:
        raise UsageError(
            f"No problem matches suite {c.suite!r}, split {c.split!r}.", "See `kpipe problems list`."
        )
    return chosen
