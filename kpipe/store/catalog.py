"""Problems. A changed reference is another row of the same name: old turns keep what judged them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import sqlalchemy as sa

from kpipe.domain.problem import Problem, Split
from kpipe.errors import StoreError
from kpipe.store import blobs
from kpipe.store.models import blob, problem
from kpipe.store.records import StoredProblem
from kpipe.store.sql import add_if_new, fetch, fetch_one

_ROW = sa.select(
    problem.c.id, problem.c.suite, problem.c.level, problem.c.name, problem.c.split, blob.c.body
).join_from(problem, blob, problem.c.reference_sha == blob.c.sha)


def add(conn: sa.Connection, new: Problem) -> tuple[int, bool]:
    """The problem's id, and whether it was new. The same suite, name and source are stored once."""
    sha = blobs.put(conn, new.source)
    row = {"suite": new.suite, "level": new.level, "name": new.name, "split": new.split, "reference_sha": sha}
    if (problem_id := add_if_new(conn, problem, row)) is not None:
        return problem_id, True
    same = (problem.c.suite == new.suite, problem.c.name == new.name, problem.c.reference_sha == sha)
    return conn.execute(sa.select(problem.c.id).where(*same)).scalar_one(), False


def select(
    conn: sa.Connection,
    suite: str,
    split: Split | Literal["all"] = "all",
    levels: Sequence[int] = (),
    names: Sequence[str] = (),
) -> list[StoredProblem]:
    """The newest version of each matching problem, by level and name. Empty `levels` or `names` mean all."""
    newest = sa.select(sa.func.max(problem.c.id)).where(problem.c.suite == suite).group_by(problem.c.name)
    query = _ROW.where(problem.c.id.in_(newest))
    if split != "all":
        query = query.where(problem.c.split == split)
    if levels:
        query = query.where(problem.c.level.in_(levels))
    if names:
        query = query.where(problem.c.name.in_(names))
    return sorted(
        (_stored(*row) for row in fetch(conn, query)), key=lambda s: (s.problem.level, s.problem.name)
    )


def get(conn: sa.Connection, problem_id: int) -> StoredProblem:
    """Raises StoreError for an unknown id."""
    row = fetch_one(conn, _ROW.where(problem.c.id == problem_id))
    if row is None:
        raise StoreError(f"There is no problem {problem_id}.", "See `kpipe problems list`.")
    return _stored(*row)


def suites(conn: sa.Connection) -> list[str]:
    return list(conn.execute(sa.select(problem.c.suite).distinct().order_by(problem.c.suite)).scalars())


def _stored(problem_id: int, *columns: Any) -> StoredProblem:
    return StoredProblem(problem_id, Problem(*columns))
