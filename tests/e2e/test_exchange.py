"""`kpipe export`, `import`, `db copy`, `digest` and `prune` as they are typed, with mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from e2e.test_bad_input import assert_refused, kpipe
from store.lived_in import lived_in
from store.store_world import World

from kpipe.store import portable
from kpipe.store.database import Database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the database kpipe.db, in which things have happened."""
    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True) as db:
        lived_in(db)
        World.make(db, "second").complete_group()
    return tmp_path


def said(*words: str, cwd: Path) -> str:
    done = kpipe(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(folder: Path) -> str:
    with Database.open(f"sqlite:///{folder / 'kpipe.db'}") as db:
        return db.read(portable.digest)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if not p.name.startswith("kpipe.db")}


def test_export_import_digest(folder: Path) -> None:
    there = digest(folder)
    assert there in said("export", "out", cwd=folder)
    assert there in said("import", "out", "--db", "sqlite:///new.db", cwd=folder)
    assert said("db", "digest", "--db", "sqlite:///new.db", cwd=folder).strip() == there
    assert there in said("db", "copy", "sqlite:///new.db", "sqlite:///third.db", cwd=folder)
    assert "All is well" in said("db", "verify", "--db", "sqlite:///third.db", cwd=folder)
    assert names(folder) >= {"out", "new.db", "third.db"}


def test_data_sets(folder: Path) -> None:
    assert "out holds 4 rows of turns" in said(
        "export", "out", "--what", "turns", "--run", "second", cwd=folder
    )
    assert (folder / "out" / "data" / "train-00000-of-00001.parquet").is_file()
    assert (folder / "out" / "README.md").read_text().startswith("---\n")
    said("export", "best", "--what", "v_best", "--format", "jsonl", cwd=folder)
    (line,) = (folder / "best/data/train-00000-of-00001.jsonl").read_text().splitlines()[:1]
    assert json.loads(line)["speedup"] == 2.0


WRONG_EXPORTS = {
    "run": (["export", "out", "--run", "secnd"], ["'secnd'", "Near: second"]),
    "what": (["export", "out", "--what", "v_bset"], ["'v_bset'", "Near: v_best"]),
    "format": (["export", "out", "--format", "xml"], ["'xml'", "parquet"]),
    "foreign bound": (["export", "out", "--what", "sft", "--min-gap", "1"], ["--min-gap", "preferences"]),
    "nothing": (["export", "out", "--what", "sft", "--min-speedup", "99"], ["nothing", "--min-speedup"]),
    "no database": (["export", "out", "--db", "sqlite:///no.db"], ["no.db"]),
    "no parent": (["export", "no/out"], ["does not exist"]),
    "existing": (["export", "."], ["exists already"]),
    "import nothing": (["import", "no", "--db", "sqlite:///new.db"], ["manifest.json"]),
    "import a database": (["import", "kpipe.db", "--db", "sqlite:///new.db"], ["manifest.json"]),
    "copy into itself": (["db", "copy", "sqlite:///kpipe.db", "sqlite:///kpipe.db"], ["not empty"]),
    "copy nothing": (["db", "copy", "sqlite:///no.db", "sqlite:///new.db"], ["no.db"]),
    "prune nobody": (["db", "prune"], ["--older-than", "--run"]),
    "prune both": (["db", "prune", "--run", "first", "--older-than", "3d"], ["--older-than", "--run"]),
    "age": (["db", "prune", "--older-than", "soon"], ["'soon'", "30d"]),
    "prune a stranger": (["db", "prune", "--run", "secnd"], ["Near: second"]),
    "prune at work": (["db", "prune", "--run", "first"], ["'first'", "at work"]),
    "digest of nothing": (["db", "digest", "--db", "sqlite:///no.db"], ["no.db"]),
}


@pytest.mark.parametrize("mistake", WRONG_EXPORTS)
def test_a_mistake_changes_nothing(folder: Path, mistake: str) -> None:
    words, named = WRONG_EXPORTS[mistake]
    before = digest(folder)
    assert_refused(kpipe(*words, cwd=folder), *named)
    assert names(folder) == set()
    assert digest(folder) == before


def test_a_cut_export(folder: Path) -> None:
    said("export", "out", cwd=folder)
    file = folder / "out" / "tokens.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    assert_refused(
        kpipe("import", "out", "--db", "sqlite:///new.db", cwd=folder), "tokens.parquet is damaged"
    )
    assert names(folder) == {"out"}


def test_a_database_that_is_not_empty(folder: Path) -> None:
    said("export", "out", cwd=folder)
    assert_refused(kpipe("import", "out", cwd=folder), "not empty")


def test_prune(folder: Path) -> None:
    with Database.open(f"sqlite:///{folder / 'kpipe.db'}") as db:
        checkpoint = folder / "kpipe-runs" / "second" / "step-000000"
        checkpoint.mkdir(parents=True)
        db.write(
            lambda conn: conn.exec_driver_sql(
                "UPDATE policy_version SET path = ? WHERE run_id = 2", (str(checkpoint),)
            )
        )
    before = digest(folder)
    rehearsed = said("db", "prune", "--run", "second", "--dry-run", "--checkpoints", cwd=folder)
    assert "Would be deleted: second." in rehearsed
    assert digest(folder) == before
    assert f"{checkpoint}: left" in rehearsed.replace("\n", "")
    done = said("db", "prune", "--run", "second", "--checkpoints", cwd=folder)
    assert rehearsed.splitlines()[1:-1] == done.splitlines()[1:-1]
    assert not checkpoint.exists()
    assert "All is well" in said("db", "verify", cwd=folder)
    assert_refused(kpipe("db", "prune", "--run", "second", cwd=folder), "no run 'second'")
    assert "nothing to delete" in said("db", "prune", "--older-than", "1d", cwd=folder)


def test_only_directories_that_kpipe_made_are_deleted(folder: Path) -> None:
    """The base policy may be a model of the user's."""
    model = folder / "my-model"
    model.mkdir()
    with Database.open(f"sqlite:///{folder / 'kpipe.db'}") as db:
        db.write(
            lambda conn: conn.exec_driver_sql(
                "UPDATE policy_version SET path = ? WHERE run_id = 2", (str(model),)
            )
        )
    assert "no checkpoint that kpipe made" in said(
        "db", "prune", "--run", "second", "--checkpoints", cwd=folder
    )
    assert model.is_dir()


def test_an_import_with_a_name_that_leads_elsewhere(folder: Path) -> None:
    with Database.open(f"sqlite:///{folder / 'kpipe.db'}") as db:
        db.write(lambda conn: conn.execute(sa.text("UPDATE run SET name = '../evil' WHERE name = 'second'")))
    said("export", "out", cwd=folder)
    assert_refused(kpipe("import", "out", "--db", "sqlite:///new.db", cwd=folder), "'../evil' cannot be")
    assert not (folder / "new.db").exists()
