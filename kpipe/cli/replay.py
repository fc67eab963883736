"""`kpipe replay`: any stage again, from what is stored."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kpipe.cli.options import DEFAULT_DB, Db, Json, RunName

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def train(
    name: RunName = "default",
    first: Annotated[int | None, typer.Option("--from", help="First update; by default the first.")] = None,
    last: Annotated[int | None, typer.Option("--to", help="Last update; by default the last.")] = None,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Make a run's updates once more from what is stored, and compare losses, gradients and parameters.

    Nothing is written. Exit code 1 when something differs: the first difference is named.

    Example: kpipe replay train --run first --from 10 --to 20
    """
    from kpipe.replay import report
    from kpipe.replay.lookup import find_run
    from kpipe.replay.retrain import Retraining
    from kpipe.store.database import Database

    with Database.open(db) as database:
        retraining = Retraining(database, find_run(database, name), first, last)
        done = retraining.run_all()
    if as_json:
        _print_json(report.retrained_json(done))
    else:
        report.print_retrained(done)
    raise typer.Exit(0 if all(r.accepted for r in done) else 1)


@app.command()
def score(
    name: RunName = "default",
    reward: Annotated[
        str | None,
        typer.Option(metavar="PRESET_OR_FILE", help="Formula: a preset, or a TOML file with [reward]."),
    ] = None,
    invalidate: Annotated[
        str | None,
        typer.Option(metavar="RULE_OR_DIGEST", help="Kernels with this finding, or this kernel, are hacks."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write it; old values stay in the journal.")] = False,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Compute rewards, returns and advantages again, and report what changes; write it only with --apply.

    --reward works on the run named with --run. --invalidate works on all runs, because they share verdicts.

    Example: kpipe replay score --reward kevin
    """
    from kpipe.errors import UsageError
    from kpipe.replay import rescore
    from kpipe.store.database import Database

    if (reward is None) == (invalidate is None):
        raise UsageError(
            "Give either --reward or --invalidate.", "For example: kpipe replay score --reward kevin."
        )
    with Database.open(db) as database:
        if reward is not None:
            found = rescore.under_formula(database, name, reward, apply=apply)
        else:
            found = rescore.with_hacks(database, invalidate or "", apply=apply)
    if as_json:
        _print_json(rescore.as_json(found, applied=apply))
    else:
        rescore.print_report(found, applied=apply)


@app.command()
def trajectory(
    number: Annotated[int, typer.Argument(metavar="ID", help="Id of the trajectory.")],
    turn: Annotated[int | None, typer.Option(help="Only this turn; turns count from 0.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Do not wait between turns.")] = False,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Step through a trajectory: prompt, suggestion, change, log, verdict, reward, and what updates made of it.

    Example: kpipe replay trajectory 17 --all
    """
    import sys

    from rich.console import Console

    from kpipe.replay import follow
    from kpipe.replay.lookup import check_turn, find_story
    from kpipe.store.database import Database

    with Database.open(db) as database:
        story = find_story(database, number)
    if turn is not None:
        check_turn(story, turn)
    if as_json:
        _print_json(follow.as_json(story, turn))
        return
    ask = not everything and sys.stdin.isatty() and sys.stdout.isatty()
    follow.step_through(Console(highlight=False), story, turn, ask=ask)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
