from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer
from store.store_world import World

from kpipe.store.database import Database

_numbers = count()


@pytest.fixture
def world(database: Database) -> World:
    return World.make(database)


@pytest.fixture
def query(database: Database) -> Callable[[str], list[tuple[Any, ...]]]:
    """Rows of a SELECT."""

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return database.read(lambda conn: [tuple(row) for row in conn.execute(sa.text(sql))])

    return rows


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """URLs of databases of this or that kind that have nothing in them yet."""
    made: list[str] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'new-{next(_numbers)}.db'}"
        name = f"new_{next(_numbers)}"
        server: PostgresServer = request.getfixturevalue("postgres")
        server.sql(f"CREATE DATABASE {name}")
        made.append(name)
        return server.url(name)

    yield make
    for name in made:
        request.getfixturevalue("postgres").sql(f"DROP DATABASE {name} WITH (FORCE)")
