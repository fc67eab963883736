"""Find or create the run that a command works on, with the problems it needs in the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpipe import __version__, problems
from kpipe.coder.endpoint import find_endpoint
from kpipe.config import Config, Loaded, from_json, keys, value_of
from kpipe.errors import UsageError
from kpipe.policy.owner import refuse_taken
from kpipe.store import catalog, policies, runs
from kpipe.store.database import Database
from kpipe.store.records import Run

# What may change between two starts of one run without making its stored turns incomparable.
CHANGEABLE = (
    "train.max_steps",
    "train.keep_last",
    "train.keep_every",
    "train.sinks",
    "train.peak_tflops",
    "train.packing",
    "train.max_tokens_per_micro_batch",
    "train.gradient_checkpointing",
    "train.threads",
    "train.device",
    "policy.batch_size",
    "policy.batch_wait_s",
    "policy.threads",
    "policy.device",
    "policy.base_url",
    "policy.engine",
    "policy.served_model",
    "policy.api_key_env",
    "policy.concurrency",
    "policy.timeout_s",
    "coder.concurrency",
    "coder.timeout_s",
    "coder.max_retries",
    "coder.rpm",
    "coder.tpm",
    "coder.continuations",
    "coder.max_usd",
    "coder.usd_per_million_in",
    "coder.usd_per_million_cached",
    "coder.usd_per_million_out",
    "coder.api_key_env",
    "collect.lease_s",
    "collect.drain_s",
    "evaluate.builders",
    "evaluate.build_timeout_s",
    "evaluate.lease_s",
    "evaluate.max_attempts",
    "evaluate.cache_dir",
    "evaluate.cache_mb",
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run in its database; `resumed` when it was there before."""

    run: Run
    config: Config
    resumed: bool


def prepare(db: Database, name: str, loaded: Loaded) -> Prepared:
    """Create the run, or take up the stored one with what may change changed.

    Raises UsageError when the new configuration contradicts the stored one, PolicyError when the models of
    another run lie where those of a new one would, and CoderError when its coder has no key.
    """
    if loaded.config.problems.suite == problems.BUILTIN_SUITE:
        db.write(_add_builtin)
    stored = db.read(runs.get, name)
    if stored is None:
        config = loaded.config
        if config.coder.kind == "openai":
            find_endpoint(
                config.coder, os.environ
            )  # a missing key is said before the run is stored with this coder
        refuse_taken((Path(config.output_dir) / name).resolve())
        run = db.write(runs.create, name, config.model_dump(mode="json"), config.seed, __version__)
        return Prepared(run, config, resumed=False)
    config = _merge(name, from_json(stored.config), loaded)
    tree = config.model_dump(mode="json")
    if tree != stored.config:
        db.write(runs.update_config, stored.id, tree)
    return Prepared(stored, config, resumed=True)


def finished_step(db: Database, run: Run) -> int:
    """The last committed update of the run; 0 when there is none."""
    newest = db.read(policies.latest, run.id)
    return newest.step if newest else 0


def _merge(name: str, stored: Config, loaded: Loaded) -> Config:
    tree: dict[str, Any] = stored.model_dump(mode="json")
    for key, value in _given(loaded):
        if value == value_of(stored, key):
            continue
        if key not in CHANGEABLE:
            raise UsageError(
                f"Run {name!r} was started with {key} = {value_of(stored, key)!r}; {loaded.origin[key]} asks for {value!r}.",
                "Start another run with --run NAME, or leave that key as it is.",
            )
        section, _, inner = key.rpartition(".")
        (tree[section] if section else tree)[inner] = value
    return from_json(tree)


def _given(loaded: Loaded) -> Iterator[tuple[str, Any]]:
    for key in keys():
        if loaded.asked_for(key):
            yield key, value_of(loaded.config, key)


def _add_builtin(conn: Any) -> None:
    for problem in problems.builtin():
        catalog.add(conn, problem)
