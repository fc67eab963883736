"""Views for people."""

import sqlalchemy as sa


def drop(conn: sa.Connection) -> None: ...
def create(conn: sa.Connection) -> None: ...
