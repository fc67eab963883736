"""`verify` finds whatever constraints cannot keep out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.marks import only_postgres, only_sqlite
from store.store_world import World

from kpipe.errors import StoreError
from kpipe.store import backup
from kpipe.store.database import Database
from kpipe.store.verify import invariants, verify


@pytest.fixture
def used(world: World) -> World:
    """Two updates, a group that waits to be trained, an open one and a failed one."""
    for step in (1, 2):
        world.complete_group()
        world.commit(step, world.take(step - 1))
    world.complete_group()
    _, members = world.open_group()
    world.implement(world.suggest(members[0]), "a kernel")
    world.complete_group([[None]])
    return world


def test_nothing_is_wrong_with_what_kpipe_writes(used: World) -> None:
    assert used.db.read(verify) == {"texts": 32, "turns": 14, "evaluations": 14, "updates": 2}


BREAKS = {
    "groups without exactly `size` trajectories, numbered from 0": (
        "UPDATE rollout_group SET size = 3 WHERE id = 1"
    ),
    "runs with a hole in the numbers of their groups": ("UPDATE rollout_group SET ordinal = 77 WHERE id = 2"),
    "trajectories with a hole in the numbers of their turns": ("UPDATE turn SET ordinal = 5 WHERE id = 2"),
    "runs with a hole in the numbers of their updates": ("UPDATE train_step SET step = 9 WHERE step = 2"),
    "runs whose policy versions are not the base and one per update": (
        "UPDATE policy_version SET step = 9 WHERE step = 2"
    ),
    "updates whose policy versions are not their own": ("UPDATE train_step SET policy_in_id = policy_out_id"),
    "finished groups with open trajectories, or open groups without": (
        "UPDATE trajectory SET state = 'open' WHERE id = 1"
    ),
    "complete groups without any reward, or failed ones with": (
        "UPDATE turn SET reward = NULL, outcome = NULL, fault = 'infra' WHERE trajectory_id IN (1, 2)"
    ),
    "closed trajectories with unsettled turns or without turns": (
        "UPDATE turn SET state = 'evaluating', settled_at = NULL, reward = NULL, outcome = NULL WHERE id = 2"
    ),
    "turns that follow an unsettled one": (
        "UPDATE turn SET state = 'evaluating', settled_at = NULL, reward = NULL, outcome = NULL WHERE id = 1"
    ),
    "turns without tokens": "DELETE FROM tokens WHERE turn_id = 3",
    "turns whose evaluation is of another kernel or problem": (
        "UPDATE turn SET evaluation_id = 1 WHERE id = 2"
    ),
    "turns with another outcome than their evaluation": ("UPDATE turn SET outcome = 'crash' WHERE id = 2"),
    "turns from a policy of another run": (
        "UPDATE turn SET policy_version_id = (SELECT max(id) FROM policy_version) WHERE id = 1"
    ),
    "trained turns that were not settled when they were trained": (
        "UPDATE turn SET state = 'evaluating', settled_at = NULL, reward = NULL, outcome = NULL WHERE id = 2"
    ),
    "samples of an update that does not exist": ("UPDATE train_sample SET step = 9 WHERE turn_id = 1"),
    "groups that an update consumed only in part, or that no update names": (
        "DELETE FROM train_sample WHERE turn_id = 1"
    ),
    "texts that nothing refers to": (
        "INSERT INTO blob (sha, body, created_at) "
        "VALUES ('ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb', 'a', CURRENT_TIMESTAMP)"
    ),
    "texts that are not what their digest says": ("UPDATE blob SET body = body || ' '"),
    "turns with an outcome that no evaluation found": "UPDATE turn SET evaluation_id = NULL WHERE id = 2",
    "correct verdicts without times and speedup, or with impossible ones": (
        "UPDATE evaluation SET speedup_low = 3 WHERE id = 1"
    ),
    "calls to the coder with both a reply and an error, or with neither": (
        "UPDATE coder_call SET error = 'overloaded' WHERE id = 1"
    ),
    "turns from a policy that is not older than the update which consumed them": (
        "UPDATE turn SET policy_version_id = 2 WHERE id = 1"
    ),
    "groups that are finished and have no time of it, or are open and have one": (
        "UPDATE rollout_group SET finished_at = NULL WHERE id = 1"
    ),
    "trained turns with both an advantage and a reason to drop them, or with neither": (
        "UPDATE train_sample SET drop_reason = 'zero_spread' WHERE turn_id = 1"
    ),
    "updates that say another number of samples than they have": (
        "UPDATE train_step SET metrics = '{\"samples_trained\": 3}' WHERE step = 2"
    ),
    "turns with samples of which not exactly one is chosen, or which name another kernel than the chosen one": (
        "INSERT INTO turn_sample (turn_id, sample, outcome, reward, chosen) VALUES (1, 0, 'unchanged', 0, 0)"
    ),
    "samples whose evaluation is of another kernel, or found something else": (
        "INSERT INTO turn_sample (turn_id, sample, evaluation_id, chosen) VALUES (1, 0, 1, 1)"
    ),
    "token frames that cannot be read": ("UPDATE tokens SET prompt_len = 99 WHERE turn_id = 1"),
}


def test_every_invariant_is_broken_by_a_test() -> None:
    assert set(invariants()) <= set(BREAKS)
    assert len(set(BREAKS) - set(invariants())) == 3


class Undo(Exception):
    """Ends a transaction without leaving a trace."""


def test_what_is_wrong_is_named(used: World) -> None:
    World.make(used.db, "second")
    for name, statement in BREAKS.items():
        assert name in said_after(used.db, statement), name
    used.db.read(verify)


def said_after(db: Database, statement: str) -> str:
    """What `verify` says when this has happened; it is undone afterwards."""
    said = []

    def break_and_look(conn: sa.Connection) -> None:
        conn.execute(sa.text(statement))
        with pytest.raises(StoreError) as caught:
            verify(conn)
        said.append(caught.value.message)
        raise Undo

    with pytest.raises(Undo):
        db.write(break_and_look)
    return said[0]


@only_postgres
def test_ids_that_would_be_given_twice(used: World) -> None:
    """A copy made by other means has left the sequences where they were."""
    used.db.write(lambda conn: conn.exec_driver_sql("SELECT setval('turn_id_seq', 3)"))
    with pytest.raises(StoreError, match="would give an id twice: turn"):
        used.db.read(verify)


@only_sqlite
def test_a_row_that_refers_to_nothing(used: World) -> None:
    """Postgres cannot be brought to write one."""

    def orphan(conn: sa.Connection) -> None:
        conn.connection.driver_connection.execute("COMMIT")
        conn.exec_driver_sql("PRAGMA foreign_keys = OFF")
        conn.exec_driver_sql("DELETE FROM run WHERE id = 1")
        conn.exec_driver_sql("PRAGMA foreign_keys = ON")

    used.db.write(orphan)
    with pytest.raises(StoreError, match="refers to nothing"):
        used.db.read(verify)


def test_a_backup_of_a_database_in_use(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True)
    world = World.make(db)
    world.complete_group()
    copy = tmp_path / "copy.db"
    with_an_open_transaction = db.write(_back_up_in_mid_write, world, copy)
    assert with_an_open_transaction == copy.stat().st_size
    world.complete_group()
    db.close()
    assert sorted(p.name for p in tmp_path.iterdir() if "copy" in p.name) == ["copy.db"]
    restored = Database.open(f"sqlite:///{copy}")
    assert restored.read(verify)["turns"] == 4
    World.make(restored, "second").complete_group()
    restored.close()


def _back_up_in_mid_write(conn: sa.Connection, world: World, copy: Path) -> int:
    """The writer holds its lock, with a row that is not committed yet."""
    conn.execute(sa.text("UPDATE run SET seed = 8"))
    return backup.backup(world.db, copy)


def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True)
    target = tmp_path / "notes"
    target.write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        backup.backup(db, target)
    assert target.read_text() == "mine"
    with pytest.raises(StoreError, match="does not exist"):
        backup.backup(db, tmp_path / "no" / "copy.db")
    db.close()


def test_two_backups_to_the_same_file_do_not_share_a_draft(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True) as db:
        other = tmp_path / "copy.db.unfinished"
        other.write_text("what another backup has so far")
        backup.backup(db, tmp_path / "copy.db")
    assert other.read_text() == "what another backup has so far"


def test_a_backup_to_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT, some network shares: link() fails there. No test can mount one."""

    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    copy = tmp_path / "copy.db"
    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True) as db:
        assert backup.backup(db, copy) == copy.stat().st_size
    with Database.open(f"sqlite:///{copy}") as restored:
        restored.read(verify)
    assert sorted(p.name for p in tmp_path.iterdir() if "unfinished" in p.name) == []


@only_postgres
def test_postgres_has_its_own_tool(database: Database, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        backup.backup(database, tmp_path / "copy")
    assert caught.value.fix.startswith("pg_dump --format=custom")
