"""A database as a collector would leave it: complete groups of a tiny policy, with invented rewards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Connection
from unit.train.making import said, tiny_model, write_base

from kpipe import __version__
from kpipe.config import Config
from kpipe.domain.problem import Problem
from kpipe.policy.files import digest
from kpipe.store import catalog, policies, rollouts, runs
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run, SuggestedTurn, TokenRecord

GROUP_SIZE, GROUPS_PER_STEP, TURNS = 3, 2, 2
LEASE_S = 3600.0
SOURCE = "class Model: ...\n"


@dataclass(frozen=True)
class Filled:
    """Where things are, and the run that was filled."""

    url: str
    output: Path
    run: Run
    base: PolicyVersion


def small_config(output: Path, *, steps: int, collect: dict[str, Any] | None = None, **train: Any) -> Config:
    """Two groups of three trajectories an update; nothing is ever too old."""
    return Config.model_validate(
        {
            "seed": 7,
            "output_dir": str(output),
            "policy": {"max_new_tokens": 12},
            "collect": {
                "group_size": GROUP_SIZE,
                "groups_per_step": GROUPS_PER_STEP,
                "max_steps_per_episode": TURNS,
                "max_off_policy_steps": 10_000,
                **(collect or {}),
            },
            "train": {
                "batch_size": GROUP_SIZE * GROUPS_PER_STEP,
                "mini_batch_size": 3,
                "gradient_accumulation_steps": 2,
                "learning_rate": 1e-2,
                "max_steps": steps,
                "threads": 1,
                "device": "cpu",
                **train,
            },
        }
    )


def start(directory: Path, config: Config, name: str = "filled") -> Filled:
    """A new database with the run and its policy version 0."""
    url = f"sqlite:///{directory / 'kpipe.db'}"
    base = write_base(Path(config.output_dir) / name / "step-000000")
    db = Database.open(url, create=True)
    try:
        run = db.write(runs.create, name, config.model_dump(mode="json"), config.seed, __version__)
        version = db.write(policies.add, run.id, 0, str(base.resolve()), digest(base))
    finally:
        db.close()
    return Filled(url, Path(config.output_dir), run, version)


def fill(filled: Filled, groups: int, *, seed: int = 0, version: PolicyVersion | None = None) -> None:
    """Add complete groups, said by the policy of seed 0. About one turn in twenty is a fault.

    The same seed gives the same bits, whatever the process did before.
    """
    torch.set_num_threads(1)
    rng, model = random.Random(seed), tiny_model()
    db = Database.open(filled.url)
    try:
        with torch.no_grad():
            for _ in range(groups):
                records = said(rng, model, GROUP_SIZE * TURNS)
                db.write(_add_group, filled, version or filled.base, records, rng)
    finally:
        db.close()


def _add_group(
    conn: Connection, filled: Filled, version: PolicyVersion, records: list[TokenRecord], rng: random.Random
) -> None:
    problem, _ = catalog.add(conn, Problem("made-up", 1, "nothing", "train", SOURCE))
    group = rollouts.open_group(conn, filled.run.id, problem, "cpu", GROUP_SIZE, LEASE_S)
    left = iter(records)
    for trajectory in rollouts.trajectories(conn, group.id):
        for ordinal in range(TURNS):
            turn = SuggestedTurn(trajectory.id, ordinal, version.id, "prompt", "0" * 64, "do it", next(left))
            (turn_id,) = rollouts.record_suggestions(conn, [turn])
            fault = None if rng.random() > 0.05 else "coder_failed"
            reward = None if fault else rng.choice([-1.0, -0.5, rng.uniform(0.5, 3.0)])
            outcome = None if reward is None else "correct" if reward > 0 else "compile_error"
            rollouts.settle(
                conn, turn_id, reward=reward, outcome=outcome, fault=fault, last=ordinal == TURNS - 1
            )
