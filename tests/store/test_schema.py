"""Versions of the schema: each mismatch has a sentence, drift is seen, upgrades race safely."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from store.processes import race
from store.store_world import World

from kpipe.assets import asset
from kpipe.errors import SchemaError
from kpipe.store import migrate, schema
from kpipe.store.database import Database
from kpipe.store.models import metadata
from kpipe.store.verify import verify

RACERS = 8


@pytest.fixture
def database_url(empty_url: str) -> str:
    """A migrated database of the test's own, whose schema it may break."""
    Database.open(empty_url, create=True).close()
    return empty_url


def change(url: str, *statements: str) -> None:
    db = Database.connect(url)
    for statement in statements:
        db.write(lambda conn, text=statement: conn.exec_driver_sql(text))
    db.close()


def refusal(url: str, *, create: bool = False) -> str:
    with pytest.raises(SchemaError) as caught:
        Database.open(url, create=create)
    assert caught.value.fix
    return caught.value.message


def test_a_new_database_is_made_only_when_asked_for(empty_url: str) -> None:
    db = Database.connect(empty_url, create=True)
    db.close()
    assert "no tables yet" in refusal(empty_url)
    Database.open(empty_url, create=True).close()
    Database.open(empty_url).close()


def test_an_older_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (*schema.revisions(), "9999_of_tomorrow")
    monkeypatch.setattr(schema, "revisions", lambda: later)
    assert "older than this kpipe" in refusal(database_url)


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_database(database_url: str, create: bool) -> None:
    change(database_url, "UPDATE alembic_version SET version_num = '9999_of_the_future'")
    assert "newer than this kpipe" in refusal(database_url, create=create)


@pytest.mark.parametrize("tables", [["customers"], ["customers", "alembic_version"]])
def test_somebody_elses_database_is_left_alone(empty_url: str, tables: list[str]) -> None:
    Database.connect(empty_url, create=True).close()
    change(empty_url, *(f"CREATE TABLE {t} (version_num TEXT)" for t in tables))
    assert "another program" in refusal(empty_url)
    assert "another program" in refusal(empty_url, create=True)
    db = Database.connect(empty_url)
    with pytest.raises(SchemaError):
        db.upgrade()
    assert set(db.read(lambda conn: sa.inspect(conn).get_table_names())) == set(tables)
    db.close()


def test_revisions_are_alembics(database: Database) -> None:
    config = database.write(migrate.alembic_config)
    script = ScriptDirectory.from_config(config)
    assert [r.revision for r in script.walk_revisions()][::-1] == list(schema.revisions())
    assert all(Path(r.path).stem == r.revision for r in script.walk_revisions())


def test_one_migration_makes_what_the_models_say(database: Database) -> None:
    assert database.check() == schema.revisions()[-1]
    database.write(lambda conn: command.check(migrate.alembic_config(conn)))


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["ALTER TABLE run ADD COLUMN extra TEXT"], "extra"),
        (["DROP INDEX ix_finding_evaluation_id"], "ix_finding_evaluation_id"),
        (["DROP VIEW v_hacks"], "view v_hacks"),
        (
            [
                "DROP INDEX ix_evaluation_claim",
                "CREATE INDEX ix_evaluation_claim ON evaluation (device, rank, id)",
            ],
            "missing: index ix_evaluation_claim",
        ),
    ],
)
def test_drift_is_seen(database: Database, statements: list[str], words: str) -> None:
    for statement in statements:
        database.write(lambda conn, text=statement: conn.exec_driver_sql(text))
    with pytest.raises(SchemaError, match=words):
        database.check()


def test_a_lost_check_constraint_is_seen(database: Database) -> None:
    if database.dialect == "postgresql":
        drop = "ALTER TABLE evaluation DROP CONSTRAINT ck_evaluation_running_is_leased"
        database.write(lambda conn: conn.exec_driver_sql(drop))
    else:
        database.write(_rewrite_schema, "CHECK ((state = 'running') = (lease IS NOT NULL))", "CHECK (1)")
    with pytest.raises(SchemaError, match=r"missing: check evaluation\.ck_evaluation_running_is_leased"):
        database.check()


def _rewrite_schema(conn: sa.Connection, old: str, new: str) -> None:
    conn.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = conn.execute(
        sa.text("UPDATE sqlite_master SET sql = replace(sql, :old, :new) WHERE name = 'evaluation'"),
        {"old": old, "new": new},
    )
    assert changed.rowcount == 1


def test_checking_leaves_nothing_behind(database: Database) -> None:
    database.check()
    names = database.read(lambda conn: sa.inspect(conn).get_schema_names())
    assert "kpipe_expected" not in names


def test_an_upgrade_mends_views(database: Database) -> None:
    database.write(lambda conn: conn.exec_driver_sql("DROP VIEW v_best"))
    assert database.upgrade() is False
    database.check()


def test_racing_upgrades_have_one_winner(empty_url: str) -> None:
    said = race([["upgrade_once.py", empty_url]] * RACERS)
    assert sorted(text.strip() for text in said) == ["False"] * (RACERS - 1) + ["True"]
    db = Database.open(empty_url)
    db.check()
    db.close()


def test_an_upgrade_that_fails_leaves_everything(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database.connect(empty_url, create=True)

    def fail(conn: sa.Connection) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(migrate.views, "create", fail)
    with pytest.raises(RuntimeError):
        db.upgrade()
    assert db.read(lambda conn: sa.inspect(conn).get_table_names()) == []
    monkeypatch.undo()
    assert db.upgrade() is True
    assert db.check()
    db.close()


SECOND = f"""
import sqlalchemy as sa
from alembic import op

revision = "9998_rebuilds_a_parent"
down_revision = "{schema.revisions()[-1]}"


def upgrade() -> None:
    with op.batch_alter_table("run", recreate="auto") as run:
        run.add_column(sa.Column("note", sa.Text()))
        run.alter_column("seed", nullable=True)
"""


def test_an_upgrade_of_a_database_in_use_loses_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite rebuilds the table that everything hangs on: with foreign keys on, it could not be dropped."""
    World.make(database).complete_group()
    before = database.read(verify)
    shutil.copytree(asset("migrations"), tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "9998_rebuilds_a_parent.py").write_text(SECOND)
    monkeypatch.setattr(migrate, "asset", lambda name: tmp_path / name)
    revisions = (*schema.revisions(), "9998_rebuilds_a_parent")
    monkeypatch.setattr(schema, "revisions", lambda: revisions)
    with pytest.raises(SchemaError, match="older"):
        schema.check_current(database.read(schema.current))
    assert database.upgrade() is True
    assert database.read(schema.current) == "9998_rebuilds_a_parent"
    assert database.read(verify) == before
    assert database.read(lambda conn: conn.execute(sa.text("SELECT turns FROM v_run")).scalar_one()) == 4
    World.make(database, "second").complete_group()


def test_every_table_has_a_name_for_every_constraint() -> None:
    for table in metadata.tables.values():
        assert all(c.name for c in table.constraints), table.name
