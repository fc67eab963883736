"""Databases for tests: every test that asks for `database` runs on SQLite and on Postgres, both real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from kpipe.store.database import Database

TEMPLATE = "kpipe_template"
_numbers = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server with one migrated, empty database to copy. A server that does not start fails the test."""
    with PostgresServer() as server:
        server.sql(f"CREATE DATABASE {TEMPLATE}")
        Database.open(server.url(TEMPLATE), create=True).close()
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def dialect(request: pytest.FixtureRequest) -> str:
    """Both databases, one after the other."""
    return str(request.param)


@pytest.fixture
def empty_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a database that is not there yet (SQLite) or has no tables (Postgres)."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'kpipe.db'}"
        return
    yield from _postgres_database(request.getfixturevalue("postgres"), "template1")


@pytest.fixture
def database_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a migrated, empty database of the test's own."""
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path / 'kpipe.db'}"
        Database.open(url, create=True).close()
        yield url
        return
    yield from _postgres_database(request.getfixturevalue("postgres"), TEMPLATE)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """That database, open."""
    db = Database.open(database_url)
    yield db
    db.close()


def _postgres_database(server: PostgresServer, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    server.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.url(name)
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for the whole session, so that the shim's library is built once.

    KPIPE_TEST_CACHE names a directory to keep it in between sessions.
    """
    kept = os.environ.get("KPIPE_TEST_CACHE")
    return Path(kept) if kept else tmp_path_factory.mktemp("build-cache")
