"""`kpipe db`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, Db
from kpipe.cli.prune import prune

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command()(prune)


@app.command()
def upgrade(db: Db = DEFAULT_DB) -> None:
    """Create the database, or bring an older one to this version, in one transaction.

    Example: kpipe db upgrade --db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.store.database import Database
    from kpipe.store.schema import current

    with Database.connect(db, create=True) as database:
        database.upgrade()
        typer.echo(f"{database.name} has schema {database.read(current)}.")


@app.command()
def check(db: Db = DEFAULT_DB) -> None:
    """Compare the database's schema with the one that this version expects.

    Example: kpipe db check
    """
    from kpipe.store.database import Database

    with Database.open(db) as database:
        typer.echo(f"{database.name} has schema {database.check()}, without any difference.")


@app.command()
def verify(db: Db = DEFAULT_DB) -> None:
    """Hash every stored text again and check that nothing is missing, doubled or contradictory.

    Example: kpipe db verify --db sqlite:///kpipe.db
    """
    from kpipe.store import verify as verification
    from kpipe.store.database import Database

    with Database.open(db) as database:
        counted = database.read(verification.verify)
    typer.echo(f"All is well: {', '.join(f'{n} {name}' for name, n in counted.items())}.")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    db: Db = DEFAULT_DB,
) -> None:
    """Copy a SQLite database while it is in use. For Postgres, use pg_dump.

    Example: kpipe db backup before-upgrade.db
    """
    from kpipe.store.backup import backup as copy
    from kpipe.store.database import Database

    with Database.connect(db) as database:
        size = copy(database, target)
    typer.echo(f"{target} holds a complete copy ({size / 1e6:.1f} MB).")


@app.command()
def digest(db: Db = DEFAULT_DB) -> None:
    """Print a SHA-256 of everything that is stored, ids included, the same on SQLite and Postgres.

    Example: kpipe db digest --db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.store import portable
    from kpipe.store.database import Database

    with Database.open(db) as database:
        typer.echo(database.read(portable.digest))


@app.command("copy")
def copy_database(
    source: Annotated[str, typer.Argument(metavar="SOURCE_URL", help="Database to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET_URL", help="Database to fill; it must be empty.")],
) -> None:
    """Copy everything into an empty database of the same or the other kind, and compare the digests.

    In one transaction: after an interruption the target is empty, and the command can be typed again.

    Example: kpipe db copy sqlite:///kpipe.db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.store.copying import copy, open_target
    from kpipe.store.database import Database

    with Database.open(source) as read, open_target(target) as filled:
        rows, digest = copy(read, filled)
        typer.echo(f"{filled.name} holds the same {rows} rows as {read.name}: digest {digest}.")
