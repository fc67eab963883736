"""`kpipe policy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe.cli.options import DEFAULT_DB, Db, Json, RunName

if TYPE_CHECKING:
    from kpipe.store.database import Database
    from kpipe.store.records import PolicyVersion, Run

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Step = Annotated[int | None, typer.Option("--step", min=0, help="Policy version; by default the newest.")]
Merged = Annotated[bool, typer.Option("--merged", help="Put a LoRA adapter into the weights.")]
COLUMNS = ("step", "reward_mean", "correct_fraction", "speedup_geomean", "kl", "kept", "digest", "path")
NARROW = 6
"""Columns of the table, which fit a terminal; JSON has all of them."""
DIGITS = 12


@app.command("list")
def list_(name: RunName = "default", db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """The policy versions of a run, with what the update that made each of them saw, and where they lie.

    Example: kpipe policy list --run first
    """
    import shutil
    import sys

    from kpipe.cli.formats import Format, write
    from kpipe.store.database import Database

    with Database.open(db) as database:
        rows = _rows(database, _run(database, name))
    if as_json:
        write(sys.stdout, Format.JSON, COLUMNS, rows, 0)
        return
    short = [row[:NARROW] for row in rows]
    write(sys.stdout, Format.TABLE, COLUMNS[:NARROW], short, shutil.get_terminal_size().columns)
    if rows:
        typer.echo(f"They lie in {Path(rows[-1][-1]).parent}.")


@app.command()
def export(
    to: Annotated[Path, typer.Option(metavar="DIR", help="New directory.")],
    name: RunName = "default",
    step: Step = None,
    merged: Merged = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Write a policy for other programs: safetensors, tokenizer, and a model card made from the run.

    Example: kpipe policy export --run first --to my-policy
    """
    from kpipe.store.database import Database
    from kpipe.train import publish

    with Database.open(db) as database:
        run, version = _version(database, name, step)
        publish.export(database, run, version, to, merged=merged)
    typer.echo(f"Version {version.step} of run {run.name!r} is in {to}; its card is {to / publish.CARD}.")


@app.command()
def push(
    to: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Repository on the Hugging Face hub.")],
    name: RunName = "default",
    step: Step = None,
    merged: Merged = False,
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see a repository that is made.")
    ] = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Upload a policy with its model card to the Hugging Face hub, as HF_TOKEN allows.

    Example: kpipe policy push --run first --to me/my-policy
    """
    from kpipe.store.database import Database
    from kpipe.train import publish

    with Database.open(db) as database:
        run, version = _version(database, name, step)
        url = publish.push(database, run, version, to, merged=merged, private=not public)
    typer.echo(f"Version {version.step} of run {run.name!r} is at {url}.")


def _run(db: Database, name: str) -> Run:
    from kpipe.domain.near import near
    from kpipe.errors import UsageError
    from kpipe.store import runs

    if (run := db.read(runs.get, name)) is None:
        known = [r.name for r in db.read(runs.list_)]
        raise UsageError(
            f"There is no run {name!r} in this database.{near(name, known)}", "`kpipe show run` lists them."
        )
    return run


def _version(db: Database, name: str, step: int | None) -> tuple[Run, PolicyVersion]:
    from kpipe.train import publish

    run = _run(db, name)
    return run, publish.choose(db, run, step)


def _rows(db: Database, run: Run) -> list[list[Any]]:
    """`kept` says whether weights, or also what an update goes on from, are on this disk."""
    from kpipe.store import policies, training

    metrics = dict(db.read(training.steps, run.id))
    measured = COLUMNS[1:5]
    return [
        [
            v.step,
            *(metrics.get(v.step, {}).get(name) for name in measured),
            _kept(Path(v.path)),
            v.digest[:DIGITS],
            v.path,
        ]
        for v in db.read(policies.list_, run.id)
    ]


def _kept(path: Path) -> str:
    if not path.is_dir():
        return "no"
    return "with optimizer" if (path / "trainer").is_dir() else "weights"
