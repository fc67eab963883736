"""`kpipe sql` on both databases: what it answers, and what the database refuses."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.marks import only_postgres
from store.store_world import World
from typer.testing import CliRunner

from kpipe.cli.app import app
from kpipe.errors import KpipeError, StoreError, UsageError
from kpipe.store.ask import ask
from kpipe.store.database import Database
from kpipe.store.sql import Value
from kpipe.store.verify import verify

WRITES = [
    "DELETE FROM train_sample",
    "UPDATE turn SET suggestion = ''",
    "INSERT INTO blob (sha, body, created_at) VALUES ('a', 'b', '2026-01-01')",
    "DROP VIEW v_best",
    "CREATE TABLE mine (id INTEGER)",
    "CREATE TEMP TABLE mine (id INTEGER)",
    "DELETE FROM train_sample RETURNING turn_id",
]
SQLITE_TRICKS = [
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "ATTACH '{folder}/other.db' AS other",
    "VACUUM INTO '{folder}/copy.db'",
    "BEGIN IMMEDIATE",
]
POSTGRES_TRICKS = [
    "SET TRANSACTION READ WRITE",
    "SET default_transaction_read_only = off",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "DO $$ BEGIN SET TRANSACTION READ WRITE; DELETE FROM train_sample; END $$",
    "DO $$ BEGIN COMMIT; DELETE FROM train_sample; END $$",
    "WITH gone AS (DELETE FROM train_sample RETURNING turn_id) SELECT * FROM gone",
    "SELECT nextval('turn_id_seq')",
    "COPY turn TO STDOUT",
]
READY_AND_ASK = """
import sys
from kpipe.cli import main
from kpipe.store import ask
def now_asking(db, sql, real=ask.ask):
    print("asking", flush=True)
    return real(db, sql)
ask.ask = now_asking
sys.argv = ["kpipe", "sql", sys.argv[2], "--db", sys.argv[1]]
main()
"""


@pytest.fixture
def played(world: World) -> World:
    """One update of four turns."""
    world.complete_group()
    world.commit(1, world.take(0))
    return world


def asked(db: Database, sql: str) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
    with ask(db, sql) as answer:
        return answer.columns, list(answer.rows)


def typed(url: str, *words: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, ["sql", *words, "--db", url], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("sql", WRITES)
def test_the_database_refuses_to_write(played: World, sql: str) -> None:
    before = played.db.read(verify)
    with pytest.raises(UsageError, match=r"refused.*read-?only"):
        asked(played.db, sql)
    assert played.db.read(verify) == before
    assert "mine" not in played.db.read(lambda conn: sa.inspect(conn).get_table_names())


def test_no_trick_lifts_the_refusal(played: World, tmp_path: Path) -> None:
    before = played.db.read(verify)
    files = set(tmp_path.iterdir())
    for sql in SQLITE_TRICKS if played.db.path else POSTGRES_TRICKS:
        with pytest.raises(UsageError):
            asked(played.db, sql.format(folder=tmp_path) if played.db.path else sql)
        with pytest.raises(UsageError, match="refused"):
            asked(played.db, "DELETE FROM train_sample")
    with pytest.raises(UsageError, match=r"one statement|multiple commands"):
        asked(played.db, "SELECT 1; DELETE FROM train_sample")
    assert played.db.read(verify) == before
    assert {p for p in set(tmp_path.iterdir()) - files if p.suffix == ".db"} == set()


@only_postgres
@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{file}'",
        "COPY (SELECT 1) TO PROGRAM 'touch {file}'",
        "/* SELECT */ copy (SELECT 1) TO PROGRAM 'touch {file}'",
    ],
)
def test_the_server_runs_no_program_and_writes_no_file(database: Database, sql: str) -> None:
    """The tests' user is a superuser, whom READ ONLY lets do both."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)  # the server may be another user
        with pytest.raises(UsageError):
            asked(database, sql.format(file=folder / "written"))
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM v_bst", r"v_bst.* Near: v_best"),
        ("SELECT problm FROM v_best", r"problm.* Near: problem"),
        ("", "no answer"),
        ("-- nothing", "no answer"),
        ("SELECT missing_function(1)", "missing_function"),
    ],
)
def test_a_mistake_is_one_sentence(played: World, sql: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        asked(played.db, sql)
    assert "\n" not in caught.value.message
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_values_are_the_same_on_both_databases(played: World) -> None:
    sql = "SELECT 1 AS i, 0.5 AS f, NULL AS n, name, config, created_at FROM run"
    columns, [(i, f, n, name, config, at)] = asked(played.db, sql)
    assert columns == ("i", "f", "n", "name", "config", "created_at")
    assert (i, f, n, name, config) == (1, 0.5, None, "first", '{"train":{"gamma":0.4}}')
    assert isinstance(at, str)
    assert len(at) == len("2026-01-01 00:00:00.000")
    assert asked(played.db, "SELECT avg(reward) FROM turn")[1] == [(0.875,)]
    assert asked(played.db, "SELECT sum(tokens_in) FROM coder_call")[1] == [(40,)]
    assert all(isinstance(data, bytes) for (data,) in asked(played.db, "SELECT data FROM tokens")[1])


def test_an_empty_answer_has_columns(played: World) -> None:
    assert asked(played.db, "SELECT id, reward FROM turn WHERE id < 0") == (("id", "reward"), [])


def test_reading_statements_of_other_kinds(played: World) -> None:
    assert asked(played.db, "VALUES (1), (2)")[1] == [(1,), (2,)]
    assert asked(played.db, "WITH a AS (SELECT 3 AS x) SELECT x FROM a WHERE 'a%b' LIKE 'a%'")[1] == [(3,)]
    plan = "EXPLAIN QUERY PLAN SELECT 1" if played.db.path else "EXPLAIN SELECT 1"
    assert asked(played.db, plan)[1]


def test_a_big_answer_is_streamed(played: World) -> None:
    """The first rows are there although the whole would take years; leaving them cancels the rest."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    millions = "SELECT i FROM generate_series(1, 20000000) AS n(i)"
    with ask(played.db, endless if played.db.path else millions) as answer:
        assert [next(answer.rows) for _ in range(3)] == [(1,), (2,), (3,)]
    assert asked(played.db, "SELECT count(*) FROM turn")[1] == [(4,)]


def test_the_formats_as_they_are_typed(played: World, database_url: str) -> None:
    sql = "SELECT id AS n, reward, fault, state FROM turn ORDER BY id"
    rows = list(csv.DictReader(io.StringIO(typed(database_url, sql))))
    assert [row["reward"] for row in rows] == ["1.0", "2.0", "0.5", "0.0"]
    assert rows[0] == {"n": "1", "reward": "1.0", "fault": "", "state": "settled"}
    found = json.loads(typed(database_url, sql, "--format", "json", "--limit", "1"))
    assert found == [{"n": 1, "reward": 1.0, "fault": None, "state": "settled"}]
    markdown = typed(database_url, sql, "-f", "markdown", "--limit", "2")
    assert markdown.splitlines()[:3] == [
        "| n | reward | fault | state |",
        "| --- | --- | --- | --- |",
        "| 1 | 1 | NULL | settled |",
    ]
    table = typed(database_url, sql, "--format", "table")
    assert table.splitlines()[0].split() == ["n", "reward", "fault", "state"]
    assert table.splitlines()[-1] == "(4 rows)"
    assert len(typed(database_url, sql, "--limit", "9" * 23).splitlines()) == 5
    assert typed(database_url, sql, "--limit", "0") == "n,reward,fault,state\n"


def test_json_columns_and_blobs(played: World, database_url: str) -> None:
    sql = "SELECT sampling, data FROM tokens WHERE turn_id = 1"
    (found,) = json.loads(typed(database_url, sql, "-f", "json"))
    assert found["sampling"] == {"temperature": 1.0}
    ((_, data),) = asked(played.db, sql)[1]
    assert isinstance(data, bytes)
    assert bytes.fromhex(found["data"]) == data
    assert f"<{len(data)} bytes>" in typed(database_url, sql, "-f", "table")


def test_the_question_may_come_from_standard_input(played: World, database_url: str) -> None:
    assert typed(database_url, "-", stdin="SELECT count(*) AS n FROM turn;\n") == "n\n4\n"


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no database"):
        typed(f"sqlite:///{tmp_path / 'none.db'}", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_everything_a_person_can_type_wrong_is_a_kpipe_error(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database at all, and long enough to be read")
    for url in (f"sqlite:///{tmp_path / 'text.db'}", "mysql://host/name", "nonsense"):
        with pytest.raises(KpipeError):
            typed(url, "SELECT 1")


def test_a_long_question_can_be_interrupted(played: World, database_url: str) -> None:
    """The database works on it for ever, without giving a row: Ctrl-C still ends it."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    command = [sys.executable, "-c", READY_AND_ASK, database_url, endless]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "asking\n"
        asking.send_signal(signal.SIGINT)
        asking.communicate()
        assert asking.returncode == 130
