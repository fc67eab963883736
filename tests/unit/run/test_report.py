"""What a person is told to type next."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kpipe.config import load
from kpipe.run.report import _next_steps, options
from kpipe.run.setup import prepare
from kpipe.run.supervisor import Supervisor
from kpipe.store import runs
from kpipe.store.database import Database


@pytest.mark.parametrize(
    ("run", "db", "words"),
    [
        ("default", "sqlite:///kpipe.db", ""),
        ("", "sqlite:///kpipe.db", ""),
        ("first", "sqlite:///kpipe.db", " --run first"),
        ("first", "sqlite:///my runs.db", " --run first --db 'sqlite:///my runs.db'"),
        ("default", "postgresql://me@/k?host=/tmp", " --db 'postgresql://me@/k?host=/tmp'"),
        ("default", "postgresql://me:s3cret@h/k", " --db 'postgresql://me:***@h/k'"),
        ("default", "postgresql://me@h/k?password=s3cret", " --db postgresql://me@h/k"),
    ],
)
def test_options_can_be_pasted_into_a_shell(
    run: str, db: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KPIPE_DB", raising=False)
    assert options(run, db) == words


def test_the_database_of_the_environment_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_DB", "postgresql://me:s3cret@h/k")
    assert options("first", "postgresql://me:s3cret@h/k") == " --run first"
    assert options("first", "sqlite:///kpipe.db") == " --run first --db sqlite:///kpipe.db"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True) as made:
        yield made


def test_what_to_type_next_holds_no_password(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KPIPE_DB", raising=False)
    run = database.write(runs.create, "first", {}, 0, "0.1.0")
    console = Console(file=io.StringIO(), width=500)
    _next_steps(console, database, "postgresql+psycopg://me:s3cret@h/k?sslpassword=s4cret", run)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "psql 'postgresql://me:***@h/k' -c" in said
    assert "s3cret" not in said
    assert "s4cret" not in said


def test_no_stage_has_the_database_on_its_command_line(database: Database, tmp_path: Path) -> None:
    """Anybody on the machine can list command lines; an environment is its user's own."""
    url = "postgresql://me:s3cret@h/k"
    prepared = prepare(database, "first", load(overrides=[f"output_dir='{tmp_path}'"], environ={}))
    for child in Supervisor(database, url, prepared, lambda step: None).children:
        child.stage = "--help"  # it has to start, not to work
        child.start()
        child.kill()
        assert child.process is not None
        assert "s3cret" not in str(child.process.args)
        assert child._environment()["KPIPE_DB"] == url
