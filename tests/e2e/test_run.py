"""`kpipe run` as a user types it: real processes, real builds, real updates, on a small configuration."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

STEPS, GROUPS, SIZE, TURNS = 3, 2, 3, 2
SMALL = [
    f"train.max_steps={STEPS}",
    f"collect.groups_per_step={GROUPS}",
    f"collect.group_size={SIZE}",
    f"train.batch_size={GROUPS * SIZE}",
    f"collect.max_steps_per_episode={TURNS}",
    "collect.lease_s=3",
    "evaluate.lease_s=3",
    "evaluate.timing_budget_s=0.05",
    "policy.warmstart_steps=20",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kpipe", *arguments]


def run_command(cache: Path, *more: str) -> list[str]:
    settings = [x for text in (*SMALL, f"evaluate.cache_dir={cache}", *more) for x in ("--set", text)]
    return command("run", *settings)


def query(directory: Path, sql: str) -> list[tuple]:  # type: ignore[type-arg]
    with sqlite3.connect(f"file:{directory / 'kpipe.db'}?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


def scalar(directory: Path, sql: str) -> int:
    return int(query(directory, sql)[0][0])


def stage_pid(supervisor: int, stage: str) -> int | None:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == supervisor and stage.encode() in words:
            return int(entry.name)
    return None


@pytest.fixture
def started(tmp_path: Path, build_cache: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        run_command(build_cache), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_until(condition, process: subprocess.Popen[str], seconds: float = 120.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except sqlite3.Error:
            pass
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    raise AssertionError("the run did not get there")


def assert_complete(directory: Path) -> None:
    """Every update trained on its own groups, each turn once; nothing is open, doubled or missing."""
    assert scalar(directory, "SELECT count(*) FROM train_step") == STEPS
    assert scalar(directory, "SELECT count(*) FROM rollout_group WHERE state = 'complete'") == STEPS * GROUPS
    assert scalar(directory, "SELECT count(*) FROM rollout_group") == STEPS * GROUPS
    assert scalar(directory, "SELECT count(*) FROM turn") == STEPS * GROUPS * SIZE * TURNS
    assert scalar(directory, "SELECT count(*) FROM train_sample") == STEPS * GROUPS * SIZE * TURNS
    assert (
        scalar(directory, "SELECT count(DISTINCT turn_id) FROM train_sample") == STEPS * GROUPS * SIZE * TURNS
    )
    done = subprocess.run(command("db", "verify"), cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_run_ends_with_a_summary_and_resumes(tmp_path: Path, build_cache: Path) -> None:
    first = subprocess.run(
        run_command(build_cache), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "mean reward per turn" in first.stdout
    assert "too few to say" in first.stdout
    assert "final model:" in first.stdout
    assert_complete(tmp_path)

    model = query(tmp_path, "SELECT path FROM policy_version ORDER BY step DESC LIMIT 1")[0][0]
    assert json.loads((Path(model) / "config.json").read_text())["model_type"] == "qwen2"

    again = subprocess.run(
        run_command(build_cache), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert_complete(tmp_path)


@pytest.mark.parametrize("stage", ["collect", "evaluate", "train"])
def test_a_killed_stage_is_restarted_and_nothing_is_lost(
    stage: str, started: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_until(lambda: scalar(tmp_path, "SELECT count(*) FROM turn WHERE state = 'settled'") >= 3, started)
    pid = stage_pid(started.pid, stage)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    output, _ = started.communicate(timeout=240)
    assert started.returncode == 0, output
    assert scalar(tmp_path, "SELECT count(*) FROM event WHERE kind = 'stage_died'") == 1
    assert_complete(tmp_path)


def test_interrupt_drains_and_the_same_command_goes_on(
    started: subprocess.Popen[str], tmp_path: Path, build_cache: Path
) -> None:
    wait_until(lambda: scalar(tmp_path, "SELECT count(*) FROM turn") >= 3, started)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=60)
    assert started.returncode == 130, output
    assert "The same command resumes" in output
    assert scalar(tmp_path, "SELECT count(*) FROM train_step") < STEPS
    again = subprocess.run(
        run_command(build_cache), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Resuming run" in again.stdout
    assert_complete(tmp_path)


def test_killing_the_supervisor_stops_its_stages(started: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: scalar(tmp_path, "SELECT count(*) FROM turn") >= 1, started)
    pids = [stage_pid(started.pid, stage) for stage in ("collect", "evaluate", "train")]
    started.kill()
    started.wait()
    deadline = time.monotonic() + 60
    alive = [p for p in pids if p]
    assert len(alive) == 3
    while alive and time.monotonic() < deadline:
        alive = [
            p
            for p in alive
            if Path(f"/proc/{p}/cmdline").exists() and Path(f"/proc/{p}/cmdline").read_bytes()
        ]
        time.sleep(0.1)
    assert not alive
