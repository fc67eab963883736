"""What a driver complains about, as a sentence and a fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from kpipe.errors import StoreError

_SQLITE = {
    "SQLITE_FULL": (
        "The disk that holds {db} is full.",
        "Free some space and type the command again; nothing is lost.",
    ),
    "SQLITE_READONLY": ("{db} cannot be written.", "Check the permissions of the file and of its directory."),
    "SQLITE_CANTOPEN": (
        "{db} cannot be opened.",
        "Check the path, its permissions and the limit on open files.",
    ),
    "SQLITE_BUSY": (
        "{db} has been locked by another program for too long.",
        "Close the program that holds a transaction open (a database browser?) and try again.",
    ),
    "SQLITE_NOTADB": ("{db} is not a kpipe database: it is no SQLite file.", "Give another path with --db."),
    "SQLITE_CORRUPT": ("{db} is damaged.", "Restore it from a backup made by `kpipe db backup`."),
    "SQLITE_IOERR": (
        "Reading or writing {db} failed.",
        "Check the disk and the limit on file sizes; then try again.",
    ),
    "SQLITE_PERM": ("{db} cannot be used by this user.", "Check its owner and permissions."),
}

_POSTGRES = {
    "53100": (
        "The disk of {db} is full.",
        "Free some space there and type the command again; nothing is lost.",
    ),
    "53300": ("{db} has no connection left.", "Stop other clients or raise max_connections."),
    "25006": ("{db} is read-only.", "Give the address of the primary server."),
    "42501": ("{db} refuses this user.", "Grant the user CREATE on the database and its schema public."),
    "3D000": ("There is no database {db}.", "Create it with createdb, or check the name."),
    "28P01": ("{db} refuses the password.", "Check user and password in the URL, or use ~/.pgpass."),
    "28000": ("{db} refuses this user.", "Check the user in the URL, and pg_hba.conf on the server."),
    "55P03": ("A lock in {db} could not be had.", "Try again when other programs have finished."),
}

DEADLOCKS = ("40P01", "40001")


@contextmanager
def explained(db: str) -> Iterator[None]:
    """Turn what a user can mend into a StoreError; let our own mistakes through as they are."""
    try:
        yield
    except DBAPIError as error:
        known = explain(error, db)
        if known is None:
            raise
        raise known from error


def explain(error: DBAPIError, db: str) -> StoreError | None:
    name = getattr(error.orig, "sqlite_errorname", None)
    if name is not None:
        for prefix, (message, fix) in _SQLITE.items():
            if name.startswith(prefix):
                return StoreError(message.format(db=db), fix)
        return None
    state = sqlstate(error)
    if state in _POSTGRES:
        message, fix = _POSTGRES[state]
        return StoreError(message.format(db=db), fix)
    if error.connection_invalidated or (state is None and type(error.orig).__name__ == "OperationalError"):
        reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "no answer"
        return StoreError(
            f"{db} does not answer: {reason}.", "Check that the server runs and the address is right."
        )
    return None


def sqlstate(error: DBAPIError) -> str | None:
    """Postgres' five-character code, where there is one."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state
