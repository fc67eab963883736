"""`kpipe db`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from store.store_world import World
from typer.testing import CliRunner

from kpipe.cli.db import app
from kpipe.errors import KpipeError, SchemaError
from kpipe.store.database import Database
from kpipe.store.schema import revisions

HEAD = revisions()[-1]


def typed(*words: str) -> str:
    """What is printed; an error is left for the top-level program to print, and raised here."""
    result = CliRunner().invoke(app, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_upgrade_check_and_verify(empty_url: str) -> None:
    assert f"has schema {HEAD}" in typed("upgrade", "--db", empty_url)
    assert f"has schema {HEAD}" in typed("upgrade", "--db", empty_url)
    assert "without any difference" in typed("check", "--db", empty_url)
    db = Database.open(empty_url)
    World.make(db).complete_group()
    db.close()
    assert "4 turns, 4 evaluations, 0 updates" in typed("verify", "--db", empty_url)


def test_backup(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path / 'kpipe.db'}", tmp_path / "copy.db"
    typed("upgrade", "--db", url)
    assert "complete copy" in typed("backup", str(copy), "--db", url)
    assert "without any difference" in typed("check", "--db", f"sqlite:///{copy}")


@pytest.mark.parametrize("command", [["check"], ["verify"], ["backup", "copy.db"]])
def test_only_upgrade_makes_a_database(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KPIPE_DB", raising=False)
    with pytest.raises(KpipeError, match=r"kpipe\.db"):
        typed(*command)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_DB", f"sqlite:///{tmp_path / 'named.db'}")
    typed("upgrade")
    assert (tmp_path / "named.db").exists()


def test_drift_is_an_error(empty_url: str) -> None:
    db = Database.open(empty_url, create=True)
    db.write(lambda conn: conn.exec_driver_sql("DROP VIEW v_run"))
    db.close()
    with pytest.raises(SchemaError, match="v_run"):
        typed("check", "--db", empty_url)


@pytest.mark.parametrize("command", ["upgrade", "check", "verify", "backup", "digest", "copy", "prune"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert f"Example: kpipe db {command}" in typed(command, "--help")
