"""`kpipe bench` from the command line: real policies of random weights, the built-in coder, a real evaluator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kpipe.cli.app import app
from kpipe.config import Config
from kpipe.errors import UsageError
from kpipe.policy.tiny import make_model, make_tokenizer
from kpipe.store import benchmarks, policies, runs
from kpipe.store.database import Database
from kpipe.store.verify import verify


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with runs `r` and `s`, whose policies have random weights: what they suggest changes nothing."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'kpipe.db'}"
    settings = {"policy": {"max_new_tokens": 4}, "output_dir": str(tmp_path / "out")}
    with Database.open(url, create=True) as db:
        tokenizer = make_tokenizer(["Fuse the loops."])
        config = Config.model_validate(settings).model_dump(mode="json")
        for seed, name in enumerate("rs"):
            run = db.write(runs.create, name, config, 0, "test")
            path = tmp_path / name
            make_model(tokenizer, seed).save_pretrained(path)
            tokenizer.save_pretrained(path)
            db.write(policies.add, run.id, 0, str(path), f"digest-{name}")
    return url


def bench(url: str, *words: str) -> str:
    result = CliRunner().invoke(app, ["bench", "--db", url, *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_two_versions_side_by_side(url: str, tmp_path: Path) -> None:
    problems = ["--split", "all", "--problem", "gelu", "--problem", "softmax"]
    words = ["--policy", "r:0", "--policy", "s", *problems]
    out = tmp_path / "table.md"
    text = bench(url, *words, "--samples", "2", "--out", str(out))
    assert out.read_text() == text
    assert "| figure | r:0 | s:0 |" in text
    assert "| fast_0 | 0.000 [0.000, 0.000] | 0.000 [0.000, 0.000] |" in text
    assert "Paired comparison" in text
    with Database.open(url) as db:
        first, second = (run for run in db.read(runs.list_) if run.name.startswith("bench-"))
        assert [len(db.read(benchmarks.episodes, run.id)) for run in (first, second)] == [4, 4]
        db.read(verify)
    again: list[dict[str, Any]] = json.loads(bench(url, *words, "--samples", "2", "--json"))
    assert [r["run"] for r in again] == [first.name, second.name]
    assert again[0]["problems"] == {"gelu": [None, None], "softmax": [None, None]}


def test_the_coder_alone(url: str) -> None:
    text = bench(url, "--policy", "none", "--split", "train", "--problem", "gelu", "--samples", "1")
    assert "| figure | coder alone |" in text
    assert "| gelu | - (0/1 correct) |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "q"], "There is no run 'q'"),
        (["--policy", "r:7"], "it has 0"),
        (["--policy", "r:x"], "no number of an update"),
        (["--policy", "r", "--split", "test"], "no split 'test'"),
        (["--policy", "r", "--suite", "mine"], "No problem matches"),
        (["--policy", "r"] * 3, "too many to compare"),
    ],
)
def test_what_is_refused(words: list[str], message: str, url: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        bench(url, *words)
    assert caught.value.fix
    with Database.open(url) as db:
        assert [run.name for run in db.read(runs.list_)] == ["r", "s"]
