"""Other programs open the database while kpipe has it open: the real ones, as docs/sql.md says."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from postgres_server import PostgresServer
from store.marks import only_postgres, only_sqlite
from store.store_world import World

from kpipe.assets import asset
from kpipe.store.models import metadata

BEST = "SELECT problem, speedup FROM v_best"
DATASETTE = asset("examples") / "datasette.yaml"
DESCRIBED: dict[str, Any] = yaml.safe_load(DATASETTE.read_text())["databases"]["kpipe"]
PARAMETERS = {"suggestions": "?word=unroll", "turn": "?turn_id=1"}


@pytest.fixture
def played(world: World) -> World:
    world.complete_group()
    world.commit(1, world.take(0))
    return world


def said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def the_file(world: World) -> Path:
    assert world.db.path is not None
    return world.db.path


@only_sqlite
@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="this machine has no sqlite3 shell")
def test_the_sqlite_shell(played: World) -> None:
    answer = said("sqlite3", "-readonly", "-header", "-csv", the_file(played), BEST)
    assert list(csv.reader(io.StringIO(answer))) == [["problem", "speedup"], ["square", "2.0"]]


@only_postgres
def test_psql(played: World, database_url: str, postgres: PostgresServer) -> None:
    answer = said(postgres.tool("psql"), database_url, "--csv", "-c", BEST)
    assert list(csv.reader(io.StringIO(answer))) == [["problem", "speedup"], ["square", "2"]]


def test_duckdb_reads_an_answer(played: World, database_url: str, tmp_path: Path) -> None:
    target = tmp_path / "turns.csv"
    question = "SELECT turn_id, problem, reward, fault, settled_at FROM v_turn ORDER BY turn_id"
    target.write_text(said(sys.executable, "-m", "kpipe", "sql", question, "--db", database_url))
    with duckdb.connect() as duck:
        query = "SELECT problem, count(*), sum(reward), count(fault), count(DISTINCT year(settled_at)) FROM "
        assert duck.execute(f"{query} '{target}' GROUP BY problem").fetchall() == [("square", 4, 3.5, 0, 1)]


@only_sqlite
def test_duckdb_attaches_the_file(played: World) -> None:
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as duck:
        try:
            duck.execute("LOAD sqlite")
        except duckdb.IOException:
            pytest.skip("DuckDB's sqlite extension is not installed; it would have to be downloaded")
        duck.execute(f"ATTACH '{the_file(played)}' AS kpipe (TYPE sqlite, READ_ONLY)")
        assert duck.execute("SELECT problem, speedup FROM kpipe.v_best").fetchall() == [("square", 2.0)]


def datasette(world: World, path: str) -> Any:
    """What Datasette answers; it knows a database by the name of its file."""
    command = [sys.executable, "-m", "datasette", str(the_file(world)), "--metadata", str(DATASETTE)]
    return json.loads(said(*command, "--get", path))


@only_sqlite
def test_datasette_shows_a_view_and_our_descriptions(played: World) -> None:
    assert datasette(played, "/kpipe/v_best.json?_shape=array")[0]["speedup"] == 2.0
    described = datasette(played, "/-/metadata.json")
    assert set(described["databases"]["kpipe"]["queries"]) == set(DESCRIBED["queries"])


@only_sqlite
@pytest.mark.parametrize("name", DESCRIBED["queries"])
def test_every_question_of_datasette_is_answered(played: World, name: str) -> None:
    rows = datasette(played, f"/kpipe/{name}.json{PARAMETERS.get(name, '?')}&_shape=array")
    assert bool(rows) == (name != "failures")  # nothing has failed here


def test_datasette_describes_every_table_by_names_that_exist(played: World, query: Any) -> None:
    tables = {name: set(table.columns.keys()) for name, table in metadata.tables.items()}
    views = {name for name in DESCRIBED["tables"] if name.startswith("v_")}
    assert set(DESCRIBED["tables"]) - views == set(tables)
    for name, described in DESCRIBED["tables"].items():
        if name in views:
            assert query(f"SELECT count(*) FROM {name}")
        else:
            assert set(described.get("columns", ())) <= tables[name]
