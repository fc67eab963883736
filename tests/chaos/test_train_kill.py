"""Kill -9 of the trainer, again and again, at any point: the run ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import sqlite3
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from unit.train.filling import GROUPS_PER_STEP, Filled, fill, small_config, start

from kpipe.train import trainer

STEPS = 24
KILLS = 20
HANG_S = 60.0
DECIDED = (
    "loss",
    "kl",
    "entropy",
    "grad_norm",
    "ratio_max",
    "mismatch_ess",
    "samples_trained",
    "learning_rate",
)

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def starter() -> Any:
    """Fresh processes that need not import torch again: forked from a clean server that has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kpipe.train.trainer", "transformers.models.qwen2.modeling_qwen2"])
    return context


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    filled = filled_database(tmp_path_factory.mktemp("undisturbed"))
    trainer.main(filled.url, filled.run.name)
    return filled


def filled_database(directory: Path) -> Filled:
    # Correction weights, a reference and a warm-up: whatever could differ after a restart takes part.
    config = small_config(
        directory / "out", steps=STEPS, proximal="recompute", kl_beta=0.01, warmup_steps=5, keep_last=1
    )
    filled = start(directory, config)
    fill(filled, STEPS * GROUPS_PER_STEP)
    return filled


def query(filled: Filled, sql: str) -> list[Row]:
    path = filled.url.removeprefix("sqlite:///")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


def committed(filled: Filled) -> int:
    return int(query(filled, "SELECT max(step) FROM policy_version")[0][0])


def results(filled: Filled) -> dict[str, list[Row]]:
    """Everything that an update decides, without the clock."""
    extracts = ", ".join(f"json_extract(metrics, '$.{n}')" for n in DECIDED)
    columns = 'turn_id, step, "return", advantage, weight, drop_reason'
    return {
        "steps": query(filled, f"SELECT step, batch_hash, {extracts} FROM train_step ORDER BY step"),
        "versions": query(filled, "SELECT step, digest FROM policy_version ORDER BY step"),
        "samples": query(filled, f"SELECT {columns} FROM train_sample ORDER BY turn_id"),
    }


def wait_for(process: BaseProcess, moment: str, filled: Filled, rng: random.Random) -> None:
    """Return at a moment in the middle of somewhere, or when the process is done."""
    root = filled.output / filled.run.name
    before = committed(filled)
    deadline = time.monotonic() + HANG_S

    def reached() -> bool:
        if moment == "draft":
            return any(root.glob(".draft-step-*"))
        if moment == "renamed":
            return (root / f"step-{before + 1:06d}").exists()
        return committed(filled) > before

    while not reached():
        if process.exitcode is not None:
            return
        assert time.monotonic() < deadline, f"the trainer hangs before {moment}"
        time.sleep(0.001)
    if moment == "anywhere":
        time.sleep(rng.uniform(0.0, 0.5))


def test_killed_at_any_point_it_ends_like_an_undisturbed_run(
    tmp_path: Path, starter: Any, undisturbed: Filled
) -> None:
    filled, rng = filled_database(tmp_path), random.Random(1)
    kills = {"draft": 0, "renamed": 0, "anywhere": 0}
    while committed(filled) < STEPS:
        process = starter.Process(target=trainer.main, args=(filled.url, filled.run.name))
        process.start()
        if sum(kills.values()) < KILLS:
            moment = rng.choice(list(kills))
            wait_for(process, moment, filled, rng)
            if process.exitcode is None:
                process.kill()
                kills[moment] += 1
        process.join(HANG_S)
        assert process.exitcode in (0, -9)
    assert sum(kills.values()) >= 12, kills
    assert results(filled) == results(undisturbed)
    nothing_is_lost_or_doubled(filled)


def nothing_is_lost_or_doubled(filled: Filled) -> None:
    turns = query(filled, "SELECT count(*) FROM turn")[0][0]
    samples = query(filled, "SELECT count(*), count(DISTINCT turn_id) FROM train_sample")[0]
    assert samples == (turns, turns)
    assert query(filled, "SELECT count(*), max(step) FROM train_step")[0] == (STEPS, STEPS)
    leftovers = [p.name for p in (filled.output / filled.run.name).iterdir()]
    assert not [n for n in leftovers if n.startswith((".draft", ".removed", "set-aside"))]


def test_killed_between_rename_and_commit_it_repeats_the_update(
    tmp_path: Path, undisturbed: Filled, starter: Any
) -> None:
    """A random kill hardly ever meets it: the checkpoint has its name, the store knows nothing."""
    filled = filled_database(tmp_path)
    root = filled.output / filled.run.name
    shutil.copytree(undisturbed.output / filled.run.name / "step-000010", root / "step-000001")
    (root / ".draft-step-000009").mkdir()
    process = starter.Process(target=trainer.main, args=(filled.url, filled.run.name))
    process.start()
    wait_for(process, "committed", filled, random.Random(0))
    process.kill()
    process.join(HANG_S)
    assert committed(filled) >= 1
    assert results(filled)["versions"][:2] == results(undisturbed)["versions"][:2]
    assert not (root / ".draft-step-000009").exists()
