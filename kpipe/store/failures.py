"""What a driver complains about, as a sentence and a fix."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

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
    "57P": ("{db} was shut down.", "Start the server and type the command again; nothing is lost."),
    "08": ("The connection to {db} broke.", "Type the command again; nothing is lost."),
    "42501": ("{db} refuses this user.", "Grant the user CREATE on the database and its schema public."),
}

_REACH = "Check that the server runs, and the address, user and name of the database (createdb makes one)."
BAD_OPTION = "Correct the options after the question mark; libpq's manual lists its parameters."

DEADLOCKS = ("40P01", "40001")


@contextmanager
def explained(db: str) -> Iterator[None]:
    """Turn what a user can mend into a StoreError; let our own mistakes through as they are."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        known = explain(error, db)
        if known is None:
            raise
        raise known from error


def explain(error: Exception, db: str) -> StoreError | None:
    """The sentence for this error of `db`, from SQLAlchemy or a driver; None when no user can mend it."""
    cause: object = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        known = _lookup(_SQLITE, getattr(cause, "sqlite_errorname", ""))
    elif isinstance(error, ProgrammingError) and error.statement is None:  # while connecting
        known = ("{db} cannot be connected to: " + str(cause) + ".", BAD_OPTION)
    elif (state := getattr(cause, "sqlstate", None)) or not isinstance(error, OperationalError):
        known = _lookup(_POSTGRES, state or "")
    else:
        reason = (str(cause).strip().splitlines() or ["no answer"])[0].rpartition("FATAL:")[2].strip()
        known = ("{db} cannot be reached: " + reason + ".", _REACH)
    return StoreError(known[0].replace("{db}", db), known[1]) if known else None


def _lookup(table: dict[str, tuple[str, str]], code: str) -> tuple[str, str] | None:
    return next((words for prefix, words in table.items() if code.startswith(prefix)), None)


def sqlstate(error: DBAPIError) -> str | None:
    """Postgres' five-character code, where there is one."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def is_lost(error: DBAPIError) -> bool:
    """Did a server go away, or is it not there yet? Then the transaction may be tried again."""
    if not isinstance(error, OperationalError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = sqlstate(error)
    return state is None or state.startswith(("08", "57P"))
