"""Copies, exports and imports give an equal store, on and between both databases."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.lived_in import lived_in
from store.marks import only_sqlite
from store.store_world import World

from kpipe.errors import SchemaError, StoreError, UsageError
from kpipe.exchange import stores
from kpipe.store import belongings, copying, policies, portable, runs
from kpipe.store.database import Database
from kpipe.store.models import metadata
from kpipe.store.verify import verify

OTHER = {"sqlite": "postgresql", "postgresql": "sqlite"}
NewUrl = Callable[[str], str]


def digest(db: Database) -> str:
    return db.read(portable.digest)


def goes_on(db: Database) -> None:
    """The imported run is used as if nothing had happened: no id is given twice."""
    run = db.read(runs.get, "first")
    assert run is not None
    base = db.read(policies.get, run.id, 0)
    assert base is not None
    world = World(db, run, 1, base, 1)
    world.complete_group()
    world.commit(3, world.take(2, max_off_policy_steps=9))
    World.make(db, "another").complete_group()
    db.read(verify)


def test_copied_there_and_back(database: Database, new_url: NewUrl) -> None:
    lived_in(database)
    with copying.open_target(new_url(OTHER[database.dialect])) as there:
        rows, said = copying.copy(database, there)
        assert said == digest(database) == digest(there)
        with copying.open_target(new_url(database.dialect)) as back:
            assert copying.copy(there, back) == (rows, said)
            assert digest(back) == said
            back.read(verify)
            goes_on(back)
        there.read(verify)
        goes_on(there)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_exported_and_imported_there_and_back(
    database: Database, new_url: NewUrl, tmp_path: Path, format: str
) -> None:
    lived_in(database)
    there, back = new_url(OTHER[database.dialect]), new_url(database.dialect)
    written = stores.export(database, tmp_path / "out", format)  # type: ignore[arg-type]
    stores.import_(tmp_path / "out", there)
    with Database.open(there) as db:
        assert digest(db) == digest(database) == written.digest
        assert stores.export(db, tmp_path / "again", format).files == written.files  # type: ignore[arg-type]
        goes_on(db)
    stores.import_(tmp_path / "again", back)
    with Database.open(back) as db:
        assert digest(db) == digest(database)
        db.read(verify)
        goes_on(db)


def test_json_null_and_no_value_are_one_thing(database: Database, new_url: NewUrl) -> None:
    lived_in(database)
    with copying.open_target(new_url(OTHER[database.dialect])) as there:
        copying.copy(database, there)
        for db in (database, there):
            asked = "SELECT count(*) FROM evaluation WHERE detail IS NULL"
            assert db.read(lambda conn, q: conn.execute(sa.text(q)).scalar_one(), asked) == 1


def test_the_digest_is_that_of_the_lines(database: Database, tmp_path: Path) -> None:
    """So that `cat` and `sha256sum` can check an export."""
    lived_in(database)
    stores.export(database, tmp_path / "out", "jsonl")
    files = [file["name"] for file in json.loads((tmp_path / "out/manifest.json").read_text())["files"]]
    lines = b"".join((tmp_path / "out" / name).read_bytes() for name in files)
    assert hashlib.sha256(lines).hexdigest() == digest(database)


CHANGES = {
    "an id": "UPDATE finding SET id = id + 1000",
    "a number": "UPDATE turn SET reward = reward + 1e-15 WHERE id = 2",
    "a text": "UPDATE turn SET suggestion = suggestion || ' ' WHERE id = 1",
    "a time": "UPDATE blob SET created_at = '2001-02-03 04:05:06.000007+00:00'",
    "a value in JSON": 'UPDATE run SET config = \'{"train":{"gamma":0.5}}\'',
    "a row": "DELETE FROM train_sample WHERE turn_id = 1",
    "bytes": "UPDATE tokens SET data = (SELECT data FROM tokens WHERE turn_id = 13)",
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_sees(database: Database, change: str) -> None:
    lived_in(database)
    before = digest(database)
    if change == "a time" and database.dialect == "sqlite":
        database.write(lambda conn: conn.exec_driver_sql(CHANGES[change].replace("+00:00", "")))
    else:
        database.write(lambda conn: conn.exec_driver_sql(CHANGES[change]))
    assert digest(database) != before


def test_token_ids_and_log_probabilities_arrive_bit_for_bit(
    database: Database, new_url: NewUrl, query: Callable[[str], list[tuple[bytes, ...]]]
) -> None:
    lived_in(database)
    frames = "SELECT data FROM tokens ORDER BY turn_id"
    with copying.open_target(new_url(OTHER[database.dialect])) as there:
        copying.copy(database, there)
        copied = there.read(lambda conn: [tuple(row) for row in conn.execute(sa.text(frames))])
    assert [bytes(data) for (data,) in copied] == [bytes(data) for (data,) in query(frames)]


def test_every_table_has_a_rule_for_what_belongs_to_a_run(database: Database) -> None:
    for table in metadata.tables:
        database.read(lambda conn, t: list(portable.rows(conn, t, [1])), table)


def test_one_run_of_two(database: Database, new_url: NewUrl, tmp_path: Path) -> None:
    lived_in(database)
    second = World.make(database, "second")
    second.complete_group()
    written = stores.export(database, tmp_path / "out", "parquet", ["second"])
    assert written.runs == ["second"]
    assert {file.table: file.rows for file in written.files}["turn"] == 4
    url = new_url(OTHER[database.dialect])
    stores.import_(tmp_path / "out", url)
    with Database.open(url) as db:
        assert [run.name for run in db.read(runs.list_)] == ["second"]
        assert db.read(verify)["turns"] == 4


def test_a_run_brings_those_whose_turns_it_was_trained_on(database: Database, tmp_path: Path) -> None:
    world = lived_in(database)
    other = World.make(database, "second")
    other.commit(1, world.take(2, max_off_policy_steps=9))
    assert database.read(belongings.ids, ["second"]) == [world.run.id, other.run.id]
    assert database.read(belongings.ids, ["first"]) == [world.run.id]
    assert database.read(belongings.users, world.run.id) == [other.run.id]


def test_a_run_that_is_not_there(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    with pytest.raises(StoreError, match=r"no run 'frist'. Near: first"):
        stores.export(database, tmp_path / "out", "jsonl", ["frist"])
    assert list(tmp_path.glob("*out*")) == []


def test_nothing_is_overwritten(database: Database, tmp_path: Path, new_url: NewUrl) -> None:
    lived_in(database)
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(UsageError, match="exists already"):
        stores.export(database, target, "jsonl")
    with pytest.raises(UsageError, match="does not exist"):
        stores.export(database, tmp_path / "no" / "out", "jsonl")
    stores.export(database, tmp_path / "good", "jsonl")
    url = new_url(database.dialect)
    stores.import_(tmp_path / "good", url)
    with pytest.raises(StoreError, match="not empty"):
        stores.import_(tmp_path / "good", url)
    with Database.open(url) as db:
        assert digest(db) == digest(database)


# --- exports that were cut, changed, or come from elsewhere; one database is enough to refuse them


@pytest.fixture
def exported(database: Database, tmp_path: Path) -> Path:
    lived_in(database)
    stores.export(database, tmp_path / "out", "jsonl")
    return tmp_path / "out"


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def without_last_line(folder: Path) -> None:
    """A file with fewer rows, and the sha that it has now."""
    lines = (folder / "event.jsonl").read_bytes().splitlines(keepends=True)[:-1]
    (folder / "event.jsonl").write_bytes(b"".join(lines))
    files = json.loads((folder / "manifest.json").read_text())["files"]
    for file in files:
        if file["table"] == "event":
            file["sha256"] = hashlib.sha256(b"".join(lines)).hexdigest()
    edit_manifest(folder, files=files)


def other_rows(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """turn.jsonl changed, its sha made to fit."""
    content = change((folder / "turn.jsonl").read_bytes())
    (folder / "turn.jsonl").write_bytes(content)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    for file in files:
        if file["table"] == "turn":
            file["sha256"] = hashlib.sha256(content).hexdigest()
    edit_manifest(folder, files=files)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda f: cut(f / "turn.jsonl"), r"turn\.jsonl is damaged"),
    "missing": (lambda f: (f / "blob.jsonl").unlink(), r"blob\.jsonl is missing"),
    "fewer rows": (without_last_line, r"rows, the manifest says"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
    "manifest cut": (lambda f: cut(f / "manifest.json"), r"manifest\.json is damaged"),
    "manifest of another program": (lambda f: edit_manifest(f, kind="else"), "not that of an exported store"),
    "newer format": (lambda f: edit_manifest(f, version=2), "version 2 of the format"),
    "newer schema": (lambda f: edit_manifest(f, schema="9999_x"), "holds schema 9999_x"),
    "unknown format": (lambda f: edit_manifest(f, format="csv"), "manifest.json is damaged"),
    "a table less": (lambda f: edit_manifest(f, files=[]), "does not name every table"),
    "another digest": (lambda f: edit_manifest(f, digest="0" * 64), "is not what was sent"),
    "another value": (
        lambda f: other_rows(f, lambda b: b.replace(b"unroll", b"enroll")),
        "is not what was sent",
    ),
    "another column": (
        lambda f: other_rows(f, lambda b: b.replace(b'"reward"', b'"award"')),
        r"turn\.jsonl does not hold what its manifest says",
    ),
    "not lines of JSON": (lambda f: other_rows(f, lambda b: b"\x00" + b), "does not hold what"),
    "a broken rule": (
        lambda f: other_rows(f, lambda b: b.replace(b'"state":"settled"', b'"state":"nowhere"')),
        "contradict a rule",
    ),
    "a text for a number": (
        lambda f: other_rows(f, lambda b: b.replace(b'"ordinal":0', b'"ordinal":"none"')),
        "contradict a rule|is not what was sent",  # SQLite takes a text for a number
    ),
    "a reference to nothing": (
        lambda f: other_rows(f, lambda b: b.replace(b'"policy_version_id":1', b'"policy_version_id":77')),
        "contradict a rule",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_changes_nothing(exported: Path, new_url: NewUrl, dialect: str, damage: str) -> None:
    url = new_url(dialect)
    Database.open(url, create=True).close()
    break_it, words = DAMAGES[damage]
    break_it(exported)
    with pytest.raises(StoreError, match=words) as caught:
        stores.import_(exported, url)
    assert caught.value.fix
    with Database.open(url) as db:
        db.read(portable.check_empty, "it")


def test_an_older_database_is_not_upgraded_by_the_way(exported: Path, new_url: NewUrl, dialect: str) -> None:
    url = new_url(dialect)
    with Database.open(url, create=True) as db:
        db.write(lambda conn: conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_x'"))
    with pytest.raises(SchemaError, match="newer"):
        stores.import_(exported, url)


# --- interruptions


class Interrupted(Exception): ...


def test_a_copy_that_breaks_off_leaves_nothing(database: Database, new_url: NewUrl) -> None:
    lived_in(database)
    url = new_url(database.dialect)

    def half(table: str) -> Iterator[list[portable.Row]]:
        if table == "turn":
            raise Interrupted
        yield from database.read(lambda conn: list(portable.rows(conn, table)))

    with copying.open_target(url) as target, pytest.raises(Interrupted):
        copying.fill(target, half, "")
    with copying.open_target(url) as target:
        copying.copy(database, target)
        assert digest(target) == digest(database)


def test_a_copy_that_is_killed_leaves_nothing(database: Database, database_url: str, new_url: NewUrl) -> None:
    lived_in(database)
    url = new_url(database.dialect)
    program = Path(__file__).with_name("die_copying.py")
    done = subprocess.run([sys.executable, program, database_url, url], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    with copying.open_target(url) as target:
        copying.copy(database, target)
        assert digest(target) == digest(database)


def test_an_export_that_breaks_off_leaves_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived_in(database)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kpipe.exchange.manifest.write", full)
    with pytest.raises(OSError, match="No space"):
        stores.export(database, tmp_path / "out", "jsonl")
    assert [p.name for p in tmp_path.iterdir() if "out" in p.name] == []


@only_sqlite
def test_parquet_needs_a_package(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_in(database)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        stores.export(database, tmp_path / "out", "parquet")
    assert "pip install 'kpipe[data]'" in caught.value.fix
    stores.export(database, tmp_path / "out", "jsonl")
    shutil.rmtree(tmp_path / "out")
