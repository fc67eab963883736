"""Does a database still have the schema that its revision promises?

`alembic check` compares tables, columns, keys and foreign keys; what it does not see - CHECK constraints, the
conditions of partial indexes, views - is compared as the database itself spells it, with a schema made new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from kpipe.errors import SchemaError
from kpipe.store import views
from kpipe.store.models import metadata

SCRATCH = "kpipe_expected"


def check(engine: sa.Engine) -> None:
    """Raises SchemaError that names the differences."""
    with engine.connect() as conn:
        differences = [_words(d) for d in compare_metadata(MigrationContext.configure(conn), metadata)]
        found = fingerprint(conn)
        conn.rollback()
        with _made_new(conn) as fresh:
            expected = fingerprint(fresh)
    differences += [f"missing: {line}" for line in sorted(expected - found)]
    differences += [f"not ours: {line}" for line in sorted(found - expected)]
    if differences:
        raise SchemaError(
            "The schema is not what its version promises:\n" + "\n".join(f"  {d}" for d in differences),
            "Restore a copy made by `kpipe db backup`; views alone are mended by `kpipe db upgrade`.",
        )


def fingerprint(conn: sa.Connection) -> set[str]:
    """One line for every CHECK constraint, index condition and view."""
    inspector, found = sa.inspect(conn), set()
    for table in inspector.get_table_names():
        for ck in inspector.get_check_constraints(table):
            found.add(f"check {table}.{ck['name']}: {_folded(ck['sqltext'])}")
        for ix in inspector.get_indexes(table):
            where = ix.get("dialect_options", {}).get(f"{conn.dialect.name}_where", "")
            found.add(f"index {ix['name']} on {table} {ix['column_names']} where {_folded(str(where))}")
    for view in inspector.get_view_names():
        found.add(f"view {view}: {_folded(inspector.get_view_definition(view))}")
    return found


@contextmanager
def _made_new(conn: sa.Connection) -> Iterator[sa.Connection]:
    """The schema as this code would make it: in memory, or beside the real one and undone at the end."""
    if conn.dialect.name == "sqlite":
        with sa.create_engine("sqlite://").connect() as fresh:
            metadata.create_all(fresh)
            views.create(fresh)
            yield fresh
        return
    with conn.begin() as transaction:
        conn.exec_driver_sql(f"CREATE SCHEMA {SCRATCH}")
        conn.exec_driver_sql(f"SET LOCAL search_path TO {SCRATCH}")
        metadata.create_all(conn, checkfirst=False)
        views.create(conn)
        yield conn
        transaction.rollback()


def _words(difference: object) -> str:
    """Alembic's tuples, as short as they can be read."""
    parts = difference if isinstance(difference, tuple) else (difference,)
    return " ".join(str(getattr(p, "name", None) or p) for p in parts)


def _folded(sql: str) -> str:
    return " ".join(sql.split())
