"""Which version of the schema a database has, judged without loading alembic: opening must be quick."""

from __future__ import annotations

from functools import cache

import sqlalchemy as sa

from kpipe.assets import asset
from kpipe.errors import SchemaError

OURS = "rollout_group"


@cache
def revisions() -> tuple[str, ...]:
    """All revisions of this code, oldest first. A migration's file is named after its revision."""
    return tuple(sorted(p.stem for p in (asset("migrations") / "versions").glob("[0-9]*.py")))


def current(conn: sa.Connection) -> str | None:
    """The database's revision, None when it is empty. Raises SchemaError when it is somebody else's."""
    tables = set(sa.inspect(conn).get_table_names())
    if not tables:
        return None
    if OURS not in tables or "alembic_version" not in tables:
        raise SchemaError(
            "The database has tables, but not those of kpipe: it belongs to another program.",
            "Give kpipe a database of its own with --db.",
        )
    return conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def check_known(revision: str | None) -> None:
    """Raises SchemaError for a database that a newer kpipe has written."""
    if revision is not None and revision not in revisions():
        raise SchemaError(
            f"The database is newer than this kpipe: schema {revision}, the code ends at {revisions()[-1]}.",
            "Upgrade kpipe, or name another database with --db.",
        )


def check_current(revision: str | None) -> None:
    """Raises SchemaError unless the database is exactly of this version."""
    check_known(revision)
    if revision is None:
        raise SchemaError("The database has no tables yet.", "Create them with `kpipe db upgrade`.")
    if revision != revisions()[-1]:
        raise SchemaError(
            f"The database is older than this kpipe: schema {revision}, the code needs {revisions()[-1]}.",
            "Bring it up to date with `kpipe db upgrade`; make a copy before with `kpipe db backup PATH`.",
        )
