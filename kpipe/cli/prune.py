"""`kpipe db prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, Db

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from kpipe.store.prune import Plan

_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Runs without a sign of life for 12h, 30d or 8w.")
    ] = None,
    run: Annotated[list[str] | None, typer.Option("--run", help="Name of a run; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go; change nothing.")] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Delete their checkpoints from this disk, too.")
    ] = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Delete whole runs, with all that only they refer to. Runs at work are kept, and so are problems.

    A run whose turns another run was trained on is kept unless that one goes as well.

    Example: kpipe db prune --older-than 30d --dry-run
    """
    from kpipe.errors import StoreError, UsageError
    from kpipe.store import prune as pruning
    from kpipe.store.database import Database

    if (older_than is None) == (not run):
        raise UsageError(
            "Say which runs: by age or by name.", "kpipe db prune --older-than 30d, or --run NAME."
        )
    seconds = None if older_than is None else _seconds(older_than)
    with Database.open(db) as database:
        plan = database.read(pruning.plan, run or (), seconds)
        if run and plan.kept:
            name, why = next(iter(plan.kept.items()))
            raise StoreError(
                f"Run {name!r} cannot be deleted: {why}.", "Stop its stages, or delete both runs."
            )
        work = pruning.rehearse if dry_run else pruning.prune
        gone = work(database, list(plan.runs)) if plan.runs else None
    _tell(plan, gone, dry_run)
    _checkpoints(plan, delete=checkpoints and not dry_run)


def _seconds(age: str) -> float:
    from kpipe.errors import UsageError

    number, unit = age[:-1], age[-1:]
    if unit not in _UNITS or not number.isdecimal() or not 0 < int(number) < 100_000:
        raise UsageError(f"{age!r} is no age.", "Write a number with h, d or w: --older-than 30d.")
    return int(number) * _UNITS[unit]


def _tell(plan: Plan, gone: Counter[str] | None, dry_run: bool) -> None:
    for name, why in plan.kept.items():
        typer.echo(f"Kept: run {name!r}, {why}.")
    if gone is None:
        typer.echo("There is nothing to delete.")
        return
    from rich.table import Table

    from kpipe.cli.console import console

    runs = ", ".join(plan.runs.values())
    typer.echo(f"{'Would be deleted' if dry_run else 'Deleted'}: {runs}.")
    table = Table("table", "rows", box=None)
    for name, rows in sorted(gone.items()):
        if rows:
            table.add_row(name, str(rows))
    console().print(table)


def _checkpoints(plan: Plan, *, delete: bool) -> None:
    """List the checkpoints that lie on this disk, and delete them if told."""
    from kpipe.train import folder

    for path, run_name in _on_disk(plan):
        ours = folder.is_checkpoint_of(path, run_name)
        if delete and ours:
            folder.remove(path)
        said = "deleted" if delete and ours else "left" if ours else "left: no checkpoint that kpipe made"
        typer.echo(f"Checkpoint {path}: {said}.")


def _on_disk(plan: Plan) -> list[tuple[Path, str]]:
    from pathlib import Path

    named = [(Path(path), name) for name, paths in plan.checkpoints.items() for path in dict.fromkeys(paths)]
    return [(path, name) for path, name in named if path.exists()]
