"""`kpipe sql`."""

from __future__ import annotations

from typing import Annotated

import typer

from kpipe.cli.formats import Format
from kpipe.cli.options import DEFAULT_DB, Db


def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One statement; - reads it from stdin.")],
    form: Annotated[
        Format | None, typer.Option("--format", "-f", help="By default table on a terminal, else csv.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Print at most this many rows.")] = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Ask the trajectory database one question. It refuses to change anything; docs/sql.md has examples.

    Example: kpipe sql "SELECT problem, speedup, suggestion FROM v_best ORDER BY speedup DESC"
    """
    import sys
    from itertools import islice

    from rich.console import Console

    from kpipe.cli.formats import write
    from kpipe.store.ask import ask
    from kpipe.store.database import Database

    text = sys.stdin.read() if statement == "-" else statement
    console = Console()
    form = form or (Format.TABLE if console.is_terminal else Format.CSV)
    with Database.open(db) as database, ask(database, text) as answer:
        write(
            sys.stdout,
            form,
            answer.columns,
            islice(answer.rows, None if limit is None else min(limit, sys.maxsize)),
            console.width,
        )
