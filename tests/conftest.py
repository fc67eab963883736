"""Databases for tests: every test that asks for `database` runs on SQLite and on Postgres, both real."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from kpipe.store.database import Database
from kpipe.store.models import metadata

SHARED = "kpipe_tests"
_numbers = count()


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A library built with -ffast-math switches them off when it is loaded: not for the next test."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server with one migrated database. A server that does not start fails the test."""
    with PostgresServer() as server:
        server.sql(f"CREATE DATABASE {SHARED}")
        Database.open(server.url(SHARED), create=True).close()
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "kpipe.db"
    Database.open(f"sqlite:///{path}", create=True).close()
    return path


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
    server, name = request.getfixturevalue("postgres"), f"test_{next(_numbers)}"
    server.sql(f"CREATE DATABASE {name}")
    yield server.url(name)
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a migrated, empty database. Tests must leave its schema as it is."""
    if dialect == "sqlite":
        path = tmp_path / "kpipe.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgres")
    yield server.url(SHARED)
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    server.sql(f"SELECT pg_terminate_backend(pid) {others}", SHARED)
    server.sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY", SHARED)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """That database, open."""
    db = Database.open(database_url)
    yield db
    db.close()


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for all processes of the session, so that the shim's library is built once.

    KPIPE_TEST_CACHE names a directory to keep it in between sessions.
    """
    if kept := os.environ.get("KPIPE_TEST_CACHE"):
        return Path(kept)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "build-cache"
