"""A user's mistake is one sentence and a fix on stderr, exit code 2, and nothing is lost or half made."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kpipe.cli.app import app
from kpipe.domain.names import check_run_name
from kpipe.errors import UsageError


def kpipe(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kpipe", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    message, *fix = done.stderr.strip().splitlines()
    assert message.startswith("Error: ")
    assert "".join(fix).strip(), "there is no fix"
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("stage", ["evaluate", "train"])
def test_missing_database(stage: str, tmp_path: Path) -> None:
    assert_refused(kpipe(stage, cwd=tmp_path), "kpipe.db")
    assert not (tmp_path / "kpipe.db").exists()


@pytest.mark.parametrize("command", [["db", "check"], ["db", "verify"], ["db", "backup", "copy.db"]])
def test_inspection_creates_no_database(command: list[str], tmp_path: Path) -> None:
    assert_refused(kpipe(*command, cwd=tmp_path), "kpipe.db")
    assert not (tmp_path / "kpipe.db").exists()


def test_newer_database(tmp_path: Path) -> None:
    assert kpipe("db", "upgrade", cwd=tmp_path).returncode == 0
    with sqlite3.connect(tmp_path / "kpipe.db") as db:
        db.execute("UPDATE alembic_version SET version_num = '9999_of_the_future'")
    assert_refused(kpipe("train", cwd=tmp_path), "newer")
    assert_refused(kpipe("run", cwd=tmp_path), "newer")


def test_somebody_elses_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "kpipe.db") as db:
        db.execute("CREATE TABLE customers (id INTEGER)")
    assert_refused(kpipe("run", cwd=tmp_path))
    with sqlite3.connect(tmp_path / "kpipe.db") as db:
        assert [r[0] for r in db.execute("SELECT name FROM sqlite_master")] == ["customers"]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "kpipe.db").write_text("these are my notes\n" * 100)
    assert_refused(kpipe("run", cwd=tmp_path))
    assert (tmp_path / "kpipe.db").read_text().startswith("these are my notes")


def test_unknown_run(tmp_path: Path) -> None:
    assert kpipe("db", "upgrade", cwd=tmp_path).returncode == 0
    assert_refused(kpipe("train", "--run", "nobody", cwd=tmp_path), "nobody")


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    assert_refused(kpipe("run", "--db", "sqlite:///no/such/place/kpipe.db", cwd=tmp_path), "no/such/place")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only directory")
def test_read_only_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        assert_refused(kpipe("run", cwd=tmp_path))
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "train.learing_rate=1"], ["train.learing_rate", "train.learning_rate"]),
        (["--set", "train.learning_rate=fast"], ["train.learning_rate", "fast"]),
        (["--set", "train.batch_size=7"], ["train.batch_size"]),
        (["--config", "missing.toml"], ["missing.toml"]),
        (["--config", "typo.toml"], ["typo.toml", "collect.group_size"]),
        (["--config", "broken.toml"], ["broken.toml"]),
        (["--preset", "kevni"], ["kevin"]),
    ],
)
def test_configuration_mistakes(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "typo.toml").write_text("[collect]\ngroup_sise = 4\n")
    (tmp_path / "broken.toml").write_text("[collect\n")
    assert_refused(kpipe("run", *arguments, cwd=tmp_path), *words)
    assert not (tmp_path / "kpipe.db").exists()


def test_a_run_keeps_its_configuration(tmp_path: Path) -> None:
    no_tools = {"PATH": str(tmp_path)}
    kpipe("run", cwd=tmp_path, env=no_tools)
    assert_refused(
        kpipe("run", "--set", "train.gamma=0.9", cwd=tmp_path, env=no_tools), "train.gamma", "--run"
    )


def test_held_out_problems_are_not_collected(tmp_path: Path) -> None:
    done = kpipe("collect", "--set", "problems.split=all", "--set", "problems.names=[]", cwd=tmp_path)
    assert_refused(done, "held-out", "problems.split=train")


def test_no_compiler(tmp_path: Path) -> None:
    done = kpipe("run", cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert_refused(done, "compiler")


def test_checkpoint_of_another_architecture(tmp_path: Path) -> None:
    """The stored path now holds a model with other shapes: the collector says so before it samples anything."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = ["--set", "policy.warmstart_steps=1", "--set", "train.max_steps=1"]
    stopped = kpipe("collect", *small, "--set", "coder.kind=openai", cwd=tmp_path, env={"OPENAI_API_KEY": ""})
    assert_refused(stopped, "OPENAI_API_KEY")

    base = tmp_path / "other"
    config = Qwen2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=64
    )
    Qwen2ForCausalLM(config).save_pretrained(base)
    done = kpipe(
        "run",
        "--run",
        "two",
        "--set",
        "policy.kind=local",
        "--set",
        f"policy.model={base}",
        *small[2:],
        cwd=tmp_path,
    )
    assert_refused(done, "tokenizer")
    shutil.rmtree(base)


@pytest.mark.parametrize("name", ["../../evil", "", ".", "a/b", "-x", "x" * 101, "a\nb", "é"])
def test_a_name_that_is_no_folder_of_its_own(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a run"):
        check_run_name(name)
    check_run_name("x" * 100)


def test_a_run_stays_in_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    done = kpipe("collect", "--run", "../../evil", cwd=inside)
    assert_refused(done, "'../../evil' cannot be the name of a run")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert not (inside / "kpipe-runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "trajectory", "99999999999999999999"],
        ["replay", "evaluate", "--turn", "99999999999999999999"],
        ["replay", "evaluate", "--sample", "99999999999999999999"],
    ],
)
def test_numbers_that_no_database_holds(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "9223372036854775807" in result.output
