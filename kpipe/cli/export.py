"""`kpipe export` and `kpipe import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, Db


def export(
    target: Annotated[Path, typer.Argument(help="Directory to write; it must not exist.")],
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Name of a run; may be repeated. All by default.")
    ] = None,
    what: Annotated[
        str,
        typer.Option(help="store, turns, groups, sft, preferences, or the name of a view such as v_best."),
    ] = "store",
    format: Annotated[str, typer.Option(help="parquet or jsonl.")] = "parquet",
    min_speedup: Annotated[
        float | None, typer.Option(help="sft: a turn pays above this speedup; 1.0 by default.")
    ] = None,
    min_gap: Annotated[
        float | None, typer.Option(help="preferences: smallest difference of rewards; any by default.")
    ] = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Write runs to files: the store itself, to be imported again, or a data set to load elsewhere.

    Example: kpipe export pairs --what preferences --run default --min-gap 0.2
    """
    from kpipe.errors import UsageError
    from kpipe.exchange import datasets, formats, stores
    from kpipe.store.database import Database

    for option, value, owner in (
        ("--min-speedup", min_speedup, "sft"),
        ("--min-gap", min_gap, "preferences"),
    ):
        if value is not None and what != owner:
            raise UsageError(f"{option} belongs to --what {owner}, not to --what {what}.", "Leave it away.")
    chosen = formats.check_usable(format)
    with Database.open(db) as database:
        if what == "store":
            written = stores.export(database, target, chosen, run or ())
            rows = sum(file.rows for file in written.files)
            typer.echo(
                f"{target} holds {len(written.files)} tables with {rows} rows: digest {written.digest}."
            )
            return
        speedup = 1.0 if min_speedup is None else min_speedup
        count = datasets.export(
            database, target, what, chosen, run or (), min_speedup=speedup, min_gap=min_gap or 0.0
        )
    typer.echo(f"{target} holds {count} rows of {what}.")


def import_(
    source: Annotated[Path, typer.Argument(help="Directory written by `kpipe export`.")],
    db: Db = DEFAULT_DB,
) -> None:
    """Fill an empty database with an exported store; a missing database is created.

    All of it or nothing: a damaged export leaves the database empty.

    Example: kpipe import exported --db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.exchange import stores

    name, found = stores.import_(source, db)
    rows = sum(file.rows for file in found.files)
    typer.echo(f"{name} holds {rows} rows: digest {found.digest}, that of the export.")
