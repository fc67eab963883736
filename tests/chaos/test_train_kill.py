"""Kill -9 of the trainer, again and again, at any point: the run ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chaos.killing import PHASES, doomed
from unit.train.filling import GROUPS_PER_STEP, Filled, fill, small_config, start

from kpipe.train import trainer

KILLS = int(os.environ.get("KPIPE_TEST_KILLS", "10"))
STEPS = KILLS // 3 + 3
"""More than the kills that come after a commit: at the end there must be something left to do."""

POINTS = {
    "learn": 30,
    "draft": 12,
    "rename": 1,
    "renamed": 4,
    "transaction": 12,
    "commit": 1,
    "committed": 12,
}
"""About how many points a phase has; a phase that is over earlier kills at its end."""

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
    context.set_forkserver_preload(
        ["chaos.killing", "kpipe.train.trainer", "transformers.models.qwen2.modeling_qwen2"]
    )
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


def test_killed_at_any_point_it_ends_like_an_undisturbed_run(
    tmp_path: Path, starter: Any, undisturbed: Filled
) -> None:
    """Kills of every phase in turn, each at a random point of it; KPIPE_TEST_KILLS says how many."""
    filled, rng, kills = filled_database(tmp_path), random.Random(1), Counter[str]()
    while committed(filled) < STEPS:
        phase = PHASES[kills.total() % len(PHASES)]
        arguments = (filled.url, filled.run.name)
        if kills.total() < KILLS:
            process = starter.Process(target=doomed, args=(*arguments, phase, rng.randrange(POINTS[phase])))
        else:
            process = starter.Process(target=trainer.main, args=arguments)
        process.start()
        process.join(HANG_S)
        assert process.exitcode in (0, -9)
        if process.exitcode == -9:
            kills[phase] += 1
    print(f"killed {kills.total()} times: {dict(kills)}")
    assert kills.total() == KILLS, kills
    assert results(filled) == results(undisturbed)
    nothing_is_lost_or_doubled(filled)


def nothing_is_lost_or_doubled(filled: Filled) -> None:
    turns = query(filled, "SELECT count(*) FROM turn")[0][0]
    samples = query(filled, "SELECT count(*), count(DISTINCT turn_id) FROM train_sample")[0]
    assert samples == (turns, turns)
    assert query(filled, "SELECT count(*), max(step) FROM train_step")[0] == (STEPS, STEPS)
    leftovers = [p.name for p in (filled.output / filled.run.name).iterdir()]
    assert not [n for n in leftovers if n.startswith((".draft", ".removed", "set-aside"))]
