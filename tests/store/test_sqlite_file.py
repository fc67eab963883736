"""What can be wrong with a file: one sentence each, and nothing lost."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.store_world import World

from kpipe.errors import StoreError
from kpipe.store import blobs, events, sqlite
from kpipe.store.database import Database
from kpipe.store.verify import verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kpipe.db"


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def refused(path: Path, *, create: bool = True) -> str:
    with pytest.raises(StoreError) as caught:
        Database.open(url(path), create=create)
    assert caught.value.fix
    return caught.value.message


def test_a_missing_file_is_not_made(path: Path) -> None:
    assert "There is no database" in refused(path, create=False)
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_is_not_there(path: Path) -> None:
    assert "does not exist" in refused(path.parent / "no" / "kpipe.db")


def test_a_directory_in_its_place(path: Path) -> None:
    path.mkdir()
    assert "is a directory" in refused(path)


@pytest.mark.parametrize("content", ["these are my notes\n" * 100, "x"])
def test_a_file_that_is_no_database(path: Path, content: str) -> None:
    path.write_text(content)
    assert "no SQLite file" in refused(path)
    assert path.read_text() == content


def test_an_empty_file_is_an_empty_database(path: Path) -> None:
    path.touch()
    assert "no tables yet" in refused(path, create=False)
    Database.open(url(path), create=True).close()


def test_a_damaged_database(path: Path) -> None:
    Database.open(url(path), create=True).close()
    with path.open("rb+") as file:
        file.seek(sqlite.PAGE_SIZE - 4000)
        file.write(os.urandom(200_000))
    assert "damaged" in refused(path)


def test_somebody_elses_file_is_not_even_switched_to_a_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE customers (id INTEGER)")
    before = path.read_bytes()
    assert "another program" in refused(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_names_with_strange_characters(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "100%#1 ü.db"
    path.parent.mkdir()
    db = Database.open(url(path), create=True)
    db.close()
    assert path.exists()


def test_another_working_directory_is_no_other_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///kpipe.db", create=True) as db:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        db.write(blobs.put, "text")
        assert db.name == "kpipe.db"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory, and no rights over what others own, whoever runs the tests."""
    directory = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        if root:
            nobody = pwd.getpwnam("nobody").pw_uid
            os.chown(directory, nobody, -1)
            os.seteuid(nobody)
        yield directory
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o755)
        shutil.rmtree(directory)


def test_a_read_only_directory(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    assert "read-only" in refused(unprivileged / "kpipe.db")
    assert list(unprivileged.iterdir()) == []


def test_a_read_only_file(unprivileged: Path) -> None:
    path = unprivileged / "kpipe.db"
    Database.open(url(path), create=True).close()
    path.chmod(0o444)
    assert "cannot be read and written" in refused(path, create=False)


def test_a_full_disk_loses_nothing(path: Path) -> None:
    """SQLite's own limit stands in for the disk's: it ends in the same error at the same place."""
    db = Database.open(url(path), create=True)
    world = World.make(db)
    world.complete_group()
    full = db.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count = 1").scalar_one())
    with pytest.raises(StoreError, match="is full") as caught:
        db.write(blobs.put_all, [f"{i} " * 20_000 for i in range(20)])
    assert "nothing is lost" in caught.value.fix
    db.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count = {full * 100}").scalar_one())
    world.complete_group()
    assert db.read(verify)["turns"] == 8
    db.close()


def test_a_lock_that_is_never_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    db = Database.open(url(path), create=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as browser:
        browser.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            db.write(blobs.put, "text")
    db.write(blobs.put, "text")
    db.close()


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "NETWORK_FILE_SYSTEMS", {sqlite.file_system(path)})
    assert "network file system" in refused(path)
    assert not path.exists()


def test_the_mount_table_is_read(tmp_path: Path) -> None:
    inside = tmp_path.resolve()
    mounts = "\n".join(
        [
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
            f"36 22 0:40 / {inside} rw,relatime shared:7 master:1 - nfs4 server:/export rw,vers=4.2",
            f"37 22 0:41 / {str(inside).replace('/', '/', 1)}\\040two rw - cifs //server/share rw",
            f"38 36 0:42 / {inside}/local rw - xfs /dev/sdb rw",
        ]
    )
    assert sqlite.file_system(inside / "kpipe.db", mounts) == "nfs4"
    assert sqlite.file_system(Path(f"{inside} two/kpipe.db"), mounts) == "cifs"
    assert sqlite.file_system(Path("/elsewhere/kpipe.db"), mounts) == "ext4"
    assert sqlite.file_system(inside / "kpipe.db", "") == ""
    (inside / "local").mkdir()
    assert sqlite.file_system(inside / "local" / "kpipe.db", mounts) == "xfs"


def test_settings_that_keep_acknowledged_work(path: Path) -> None:
    db = Database.open(url(path), create=True)
    for run in (db.read, db.write):
        settings = {
            name: run(lambda conn, name=name: conn.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "page_size")
        }
        assert settings == {
            **{"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1},
            **{"busy_timeout": 30_000, "page_size": 8192},
        }
    db.close()


def test_a_reader_cannot_write(path: Path) -> None:
    db = Database.open(url(path), create=True)
    with pytest.raises(StoreError, match="cannot be written"):
        db.read(events.log, "kind", "run", 1, "test")
    db.close()


def test_a_reader_sees_one_state(path: Path) -> None:
    db = Database.open(url(path), create=True)

    def look_twice(conn: sa.Connection) -> tuple[int, int]:
        look = sa.text("SELECT count(*) FROM blob")
        first = conn.execute(look).scalar_one()
        db.write(blobs.put, "written meanwhile")
        return first, conn.execute(look).scalar_one()

    assert db.read(look_twice) == (0, 0)
    assert db.read(lambda conn: conn.execute(sa.text("SELECT count(*) FROM blob")).scalar_one()) == 1
    db.close()
