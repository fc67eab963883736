from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from store.store_world import World

from kpipe.store.database import Database


@pytest.fixture
def world(database: Database) -> World:
    return World.make(database)


@pytest.fixture
def query(database: Database) -> Callable[[str], list[tuple[Any, ...]]]:
    """Rows of a SELECT."""

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return database.read(lambda conn: [tuple(row) for row in conn.execute(sa.text(sql))])

    return rows
