"""All commands, as `kpipe --help` lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from kpipe import __version__
from kpipe.cli import (
    bench,
    config,
    db,
    doctor,
    export,
    loopback,
    policy,
    problems,
    replay,
    show,
    sql,
    stages,
    warmstart,
)

app = typer.Typer(
    name="kpipe",
    help="Train a language model to make GPU kernels faster: collect, evaluate, train, over one trajectory database.",
    epilog="Start with `kpipe run`: it needs no GPU, no key and no network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kpipe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


app.command()(stages.run)
app.command()(stages.collect)
app.command()(stages.evaluate)
app.command()(stages.train)
app.command()(bench.bench)
app.command()(warmstart.warmstart)
app.command()(doctor.doctor)
app.command()(export.export)
app.command("import")(export.import_)
app.command()(sql.sql)
app.command()(loopback.loopback)
app.add_typer(
    show.app, name="show", help="Show runs, groups, trajectories, turns, queue, workers, best kernels, costs."
)
app.add_typer(policy.app, name="policy", help="List, export and publish the policies of a run.")
app.add_typer(problems.app, name="problems", help="List, show and add problems.")
app.add_typer(config.app, name="config", help="Show the configuration.")
app.add_typer(db.app, name="db", help="Create, check, verify, copy and prune the trajectory database.")
app.add_typer(replay.app, name="replay", help="Do any stage again from what is stored, and compare.")
