"""The views of `views.sql`: dropped before every migration, made again after it."""

from __future__ import annotations

import sqlalchemy as sa

from kpipe.assets import asset

PREFIX = "v_"


def create(conn: sa.Connection) -> None:
    for statement in asset("store/views.sql").read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            conn.exec_driver_sql(statement)


def drop(conn: sa.Connection) -> None:
    """Those of any version: a table cannot be changed under a view."""
    cascade = " CASCADE" if conn.dialect.name == "postgresql" else ""
    for name in sa.inspect(conn).get_view_names():
        if name.startswith(PREFIX):
            conn.exec_driver_sql(f"DROP VIEW IF EXISTS {name}{cascade}")
