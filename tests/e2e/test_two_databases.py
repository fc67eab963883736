"""Two databases in one directory: neither touches the other's models."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.train.filling import GROUPS_PER_STEP, Filled, fill, small_config, start

from kpipe.cli.app import app
from kpipe.config import load
from kpipe.errors import PolicyError
from kpipe.policy.files import digest
from kpipe.policy.owner import claim
from kpipe.run.setup import prepare
from kpipe.store import policies
from kpipe.store.database import Database
from kpipe.train import trainer


@pytest.fixture
def trained(tmp_path: Path) -> Filled:
    filled = start(tmp_path, small_config(tmp_path / "out", steps=1))
    fill(filled, GROUPS_PER_STEP)
    trainer.main(filled.url, filled.run.name)
    return filled


def digests(filled: Filled) -> list[bool]:
    with Database.open(filled.url) as db:
        return [digest(v.path) == v.digest for v in db.read(policies.list_, filled.run.id)]


def test_a_new_run_of_the_same_name_is_refused(trained: Filled, tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'other.db'}", create=True) as db:
        loaded = load(preset="embedded", overrides=[f"output_dir={trained.output}"], environ={})
        with pytest.raises(PolicyError, match="holds the models of another run \\(filled, made 2"):
            prepare(db, "filled", loaded)
        assert prepare(db, "else", loaded).resumed is False
    assert digests(trained) == [True, True]


def test_a_trainer_of_another_database_is_refused(trained: Filled, tmp_path: Path) -> None:
    """Its run was there before the other's models were."""
    (tmp_path / "second").mkdir()
    second = start(tmp_path / "second", small_config(tmp_path / "second" / "out", steps=1))
    with Database.open(second.url) as db:
        db.write(lambda conn: conn.exec_driver_sql(f"UPDATE run SET config = replace(config, '{second.output}', '{trained.output}')"))  # fmt: skip
    with pytest.raises(PolicyError, match="another run"):
        trainer.main(second.url, "filled")
    assert digests(trained) == [True, True]


def test_a_copy_of_the_database_goes_on(trained: Filled, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    backup = CliRunner().invoke(app, ["db", "backup", str(tmp_path / "copy.db"), "--db", trained.url])
    assert backup.exit_code == 0, backup.output
    trainer.main(copy, "filled")


def test_a_directory_without_models_is_free(tmp_path: Path) -> None:
    claim(tmp_path / "r", "one", known=False)
    claim(tmp_path / "r", "two", known=False)
    (tmp_path / "r" / "step-000000").mkdir()
    claim(tmp_path / "r", "two", known=False)
    with pytest.raises(PolicyError, match=r"another run \(two\)"):
        claim(tmp_path / "r", "one", known=True)
