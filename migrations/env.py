"""Alembic's entry: kpipe hands in its connection; `alembic revision` opens one by -x db=URL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from kpipe.store.models import metadata


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        transactional_ddl=True,
    )
    context.run_migrations()


if (given := context.config.attributes.get("connection")) is not None:
    run(given)
else:
    url = context.get_x_argument(as_dictionary=True).get("db", "sqlite:///kpipe.db")
    with sa.create_engine(url).connect() as opened:
        run(opened)
