"""Bring a database to the newest revision. Loads alembic, so it is imported only when there is work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from kpipe.assets import asset
from kpipe.errors import SchemaError
from kpipe.store import schema, views

LOCK = 0x6B706970  # "kpip": the advisory lock that lets one of several upgrades through


def upgrade(engine: sa.Engine) -> bool:
    """In one transaction: wait for other upgrades, migrate, rebuild the views. Raises SchemaError.

    True when there was anything to migrate: of several upgrades at once only one finds something.
    """
    with engine.connect() as conn:
        if sqlite := conn.dialect.name == "sqlite":
            # With foreign keys on, a table that is rebuilt takes its children along when it is dropped.
            # The switch has no effect inside a transaction.
            _raw(conn).execute("PRAGMA foreign_keys = OFF")
        try:
            with conn.begin():
                if not sqlite:
                    conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
                before = schema.current(conn)
                schema.check_known(before)
                views.drop(conn)
                command.upgrade(alembic_config(conn), "head")
                views.create(conn)
                if sqlite and (broken := conn.exec_driver_sql("PRAGMA foreign_key_check").fetchall()):
                    raise SchemaError(
                        f"The upgrade was undone: it would break {len(broken)} references in {broken[0][0]}.",
                        "Run `kpipe db verify` and report what it says.",
                    )
        finally:
            if sqlite:
                _raw(conn).execute("PRAGMA foreign_keys = ON")
    return before != schema.revisions()[-1]


def alembic_config(conn: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(asset("migrations")).replace("%", "%%"))
    config.attributes["connection"] = conn
    return config


def _raw(conn: sa.Connection):  # type: ignore[no-untyped-def]
    return conn.connection.dbapi_connection
