"""A small real run, and every kind of replay of it as a user types it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluating import CACHE

SETTINGS = (
    "train.max_steps=2",
    "collect.groups_per_step=2",
    "collect.group_size=4",
    "train.batch_size=8",
    "collect.max_steps_per_episode=2",
    "problems.names=['gelu', 'cumsum']",
    "evaluate.timing_budget_s=0.05",
    "evaluate.trials=2",
    "policy.warmstart_steps=20",
    f"evaluate.cache_dir={CACHE}",
)


def kpipe(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "kpipe", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code in (0, 1) else done.stderr


def query(folder: Path, sql: str) -> list[Any]:
    with sqlite3.connect(f"file:{folder / 'kpipe.db'}?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates on two problems."""
    folder = tmp_path_factory.mktemp("real")
    kpipe(folder, "run", *(word for text in SETTINGS for word in ("--set", text)))
    return folder


def everything(folder: Path) -> dict[str, list[Any]]:
    """What a replay must not touch."""
    tables = (
        "turn",
        "trajectory",
        "rollout_group",
        "train_step",
        "train_sample",
        "policy_version",
        "evaluation",
    )
    return {table: query(folder, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}


def test_training_comes_out_equal(folder: Path) -> None:
    before = everything(folder)
    assert "All 2 updates came out equal, bit for bit." in kpipe(folder, "replay", "train")
    assert "All 1 updates came out equal" in kpipe(folder, "replay", "train", "--from", "2")
    assert everything(folder) == before


def test_the_same_formula_changes_nothing(folder: Path) -> None:
    """Rewards, returns and advantages are computed from the stored verdicts exactly as they were at first."""
    (folder / "same.toml").write_text("[reward]\n")
    assert json.loads(kpipe(folder, "replay", "score", "--reward", "same.toml", "--json"))["changed"] == 0
    (folder / "base.toml").write_text("[reward]\nunchanged = -0.25\ncorrect = 1.3\n")
    told = json.loads(kpipe(folder, "replay", "score", "--reward", "base.toml", "--json"))
    ((moved,),) = query(folder, "SELECT count(*) FROM turn WHERE outcome IN ('unchanged', 'correct')")
    assert told["changed"] == moved > 0


def test_applied_scores_leave_a_sound_database(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "kpipe.db", tmp_path / "kpipe.db")
    (tmp_path / "mine.toml").write_text("[reward]\nunchanged = -0.25\ncorrect = 1.3\n")
    assert "Written." in kpipe(tmp_path, "replay", "score", "--reward", "mine.toml", "--apply")
    assert "All is well" in kpipe(tmp_path, "db", "verify")
    said = kpipe(tmp_path, "replay", "train", code=1)
    assert "update 1, batch hash" in said
    assert "has changed rewards (mine.toml)" in said


def test_a_what_if_is_a_run_like_any_other(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "kpipe.db", tmp_path / "kpipe.db")
    told = kpipe(tmp_path, "replay", "train", "--set", "train.learning_rate=3e-4", "--into", "faster")
    assert "-> 0.0003" in told
    assert "All is well" in kpipe(tmp_path, "db", "verify")
    assert "All 2 updates came out equal" in kpipe(tmp_path, "replay", "train", "--run", "faster")


def test_played_again_by_the_same_it_says_and_does_the_same(folder: Path) -> None:
    before = everything(folder)
    ((trajectory,),) = query(
        folder,
        "SELECT trajectory_id FROM turn WHERE ordinal = 1 AND outcome = 'correct'"
        " ORDER BY trajectory_id LIMIT 1",
    )
    told = json.loads(
        kpipe(folder, "replay", "trajectory", str(trajectory), "--run", "--turn", "1", "--json")
    )
    stored, again = (told[side]["turns"] for side in ("stored", "again"))
    assert [t["ordinal"] for t in again] == [0, 1]
    assert again[0] == stored[0]
    for key in ("prompt", "suggestion", "kernel", "outcome", "policy_step"):
        assert again[1][key] == stored[1][key], key
    assert again[1]["verdict"]["detail"]["seeds"] != stored[1]["verdict"]["detail"]["seeds"]
    assert everything(folder) == before


def test_played_by_another_policy_it_is_shown_beside(folder: Path) -> None:
    base = query(folder, "SELECT path FROM policy_version WHERE step = 2")[0][0]
    shown = kpipe(folder, "replay", "trajectory", "1", "--run", "--policy", base, "--coder", "builtin")
    assert "played again" in shown
    assert "reward was" in shown


def test_another_round_of_the_same_kernels(folder: Path) -> None:
    turns = query(folder, "SELECT id, reward, evaluation_id FROM turn ORDER BY id")
    rounds = query(folder, "SELECT max(round) FROM evaluation")[0][0]
    told = json.loads(kpipe(folder, "replay", "evaluate", "--sample", "2", "--same-seeds", "--now", "--json"))
    assert [p["agree"] for p in told] == [True, True]
    assert {p["after"]["round"] for p in told} == {rounds + 1}
    assert query(folder, "SELECT id, reward, evaluation_id FROM turn ORDER BY id") == turns


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--run", "defualt"], "Near: default."),
        (["train", "--from", "3"], "Near: 1, 2."),
        (["train", "--set", "train.gamma=1.0"], "--into NAME"),
        (["score"], "--reward or --invalidate"),
        (["score", "--invalidate", "no-such-rule"], "No stored kernel"),
        (["score", "--invalidate", "no-such-rule", "--run", "first"], "all runs"),
        (["evaluate", "--problem", "gelus"], "Near: gelu."),
        (["trajectory", "99"], "no trajectory 99 in this database. Near: 12, 13, 14, 15, 16."),
        (["trajectory", "1", "--turn", "7"], "Near: 0, 1."),
        (["trajectory", "1", "--policy", "x"], "Add --run"),
        (["trajectory", "1", "--run", "--coder", "human"], "builtin, openai"),
        (["trajectory", "1", "--run", "--policy", "/no/where"], "no model directory"),
    ],
)
def test_mistakes_change_nothing(folder: Path, arguments: list[str], words: str) -> None:
    before = everything(folder)
    said = kpipe(folder, "replay", *arguments, code=2)
    assert said.startswith("Error: ")
    assert words in said
    assert everything(folder) == before
