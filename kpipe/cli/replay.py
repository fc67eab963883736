"""`kpipe replay`: any stage again, from what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe.cli.options import DEFAULT_DB, LARGEST_ID, Db, Json, RunName, Set

if TYPE_CHECKING:
    from kpipe.store.database import Database
    from kpipe.store.records import Run, Story

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def train(
    name: RunName = "default",
    first: Annotated[int | None, typer.Option("--from", help="First update; by default the first.")] = None,
    last: Annotated[int | None, typer.Option("--to", help="Last update; by default the last.")] = None,
    set_: Set = None,
    reward: Annotated[
        str | None, typer.Option(metavar="PRESET_OR_FILE", help="Other reward formula.")
    ] = None,
    problems: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only rollouts on these problems: a,b.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="NAME", help="Train a new run with these changes.")
    ] = None,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Make a run's updates once more from what is stored, and compare losses, gradients and parameters.

    Nothing is written. Exit code 1 when something differs: the first difference is named. With --into, train
    a new run on the stored rollouts instead, with other train.* or reward.* settings.

    Example: kpipe replay train --run first --set train.learning_rate=1e-4 --into faster
    """
    from kpipe.errors import UsageError
    from kpipe.replay.lookup import find_run
    from kpipe.store.database import Database

    if into is None and (set_ or reward or problems):
        raise UsageError(
            "--set, --reward and --problems make another run.", "Name it with --into NAME, or leave them out."
        )
    with Database.open(db) as database:
        run = find_run(database, name)
        if into is None:
            accepted = _compare(database, run, first, last, as_json)
            raise typer.Exit(0 if accepted else 1)
        _what_if(database, run, first, last, set_, reward, problems, into, as_json)


def _compare(database: Database, run: Run, first: int | None, last: int | None, as_json: bool) -> bool:
    from kpipe.replay import report
    from kpipe.replay.retrain import Retraining

    done = Retraining(database, run, first, last).run_all()
    if as_json:
        _print_json(report.retrained_json(done))
    else:
        report.print_retrained(done)
    return all(r.accepted for r in done)


def _what_if(
    database: Database,
    run: Run,
    first: int | None,
    last: int | None,
    set_: list[str] | None,
    reward: str | None,
    problems: str | None,
    into: str,
    as_json: bool,
) -> None:
    from kpipe.replay import report, scoring, whatif
    from kpipe.store import training

    plan = whatif.make_plan(
        database,
        run,
        overrides=set_ or (),
        reward=scoring.read_formula(reward) if reward else None,
        problems=[name.strip() for name in (problems or "").split(",") if name.strip()],
        first=first,
        last=last,
    )
    made, steps = whatif.carry_out(database, plan, into)
    old = database.read(training.committed, run.id)
    if as_json:
        rows = report.what_if_json(plan, steps, old)
        _print_json({"run": made.name, "lineage": plan.lineage(), "updates": rows})
    elif steps:
        report.print_what_if(made.name, plan, steps, old)
    if len(steps) < len(plan.steps):
        typer.echo("Stopped; the same command goes on.", err=True)
        raise typer.Exit(130)


@app.command()
def score(
    name: Annotated[
        str | None, typer.Option("--run", help="Name of the run, for --reward.  [default: default]")
    ] = None,
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
    if invalidate is not None and name is not None:
        raise UsageError("--invalidate works on all runs, because they share verdicts.", "Leave --run away.")
    with Database.open(db) as database:
        if reward is not None:
            found = rescore.under_formula(database, name or "default", reward, apply=apply)
        else:
            found = rescore.with_hacks(database, invalidate or "", apply=apply)
    if as_json:
        _print_json(rescore.as_json(found, applied=apply))
    else:
        rescore.print_report(found, applied=apply)


@app.command()
def evaluate(
    name: RunName = "default",
    sample: Annotated[
        int | None, typer.Option(help="So many kernels, drawn evenly. Default: 10.", min=1, max=LARGEST_ID)
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The fastest kernel of every problem.")] = False,
    problem: Annotated[str | None, typer.Option(help="All kernels of this problem.")] = None,
    turn: Annotated[
        int | None, typer.Option(metavar="ID", min=0, max=LARGEST_ID, help="The kernel of this turn.")
    ] = None,
    same_seeds: Annotated[
        bool, typer.Option("--same-seeds", help="The inputs of the stored verdict, not fresh ones.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Evaluate here, in place of waiting for workers.")
    ] = False,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Build, check and time stored kernels again, and compare verdicts and speedups. Rewards stay as they are.

    Exit code 1 when a verdict is another one than before, or nothing could be judged.

    Example: kpipe replay evaluate --best --now
    """
    from kpipe.errors import UsageError
    from kpipe.replay import rejudge
    from kpipe.replay.lookup import find_run
    from kpipe.store.database import Database

    if sum((sample is not None, best, problem is not None, turn is not None)) > 1:
        raise UsageError("--sample, --best, --problem and --turn exclude each other.", "Give one of them.")
    with Database.open(db) as database:
        run = find_run(database, name)
        chosen = rejudge.choose(database, run, sample=sample, best=best, problem=problem, turn=turn)
        pairs = rejudge.again(database, run, chosen, same_seeds=same_seeds, now=now)
    if as_json:
        _print_json(rejudge.as_json(pairs))
    else:
        rejudge.print_agreement(pairs)
    raise typer.Exit(0 if rejudge.holds(pairs) else 1)


@app.command()
def trajectory(
    number: Annotated[int, typer.Argument(metavar="ID", min=0, max=LARGEST_ID, help="Id of the trajectory.")],
    turn: Annotated[int | None, typer.Option(help="Only this turn; turns count from 0.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Do not wait between turns.")] = False,
    play: Annotated[
        bool, typer.Option("--run", "--run-again", help="Play it again from --turn (or the first) on.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(metavar="PATH", help="With --run: the checkpoint that suggests.")
    ] = None,
    coder: Annotated[str | None, typer.Option(help="With --run: builtin or openai.")] = None,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Step through a trajectory: prompt, suggestion, change, log, verdict, reward, and what updates made of it.

    With --run it is played again, by the policies and the coder that played it or by others, and shown beside
    the stored one. Nothing of that is written into the run.

    Example: kpipe replay trajectory 17 --run --turn 2
    """
    from kpipe.errors import UsageError
    from kpipe.replay.lookup import check_turn, find_story
    from kpipe.store.database import Database

    if not play and (policy or coder):
        raise UsageError("--policy and --coder say who plays with --run.", "Add --run, or leave them out.")
    with Database.open(db) as database:
        story = find_story(database, number)
        if turn is not None:
            check_turn(story, turn)
        if play:
            _play(database, story, turn or 0, policy, coder, as_json)
        else:
            _follow(story, turn, everything, as_json)


def _follow(story: Story, turn: int | None, everything: bool, as_json: bool) -> None:
    import sys

    from rich.console import Console

    from kpipe.replay import follow

    if as_json:
        _print_json(follow.as_json(story, turn))
        return
    ask = not everything and sys.stdin.isatty() and sys.stdout.isatty()
    follow.step_through(Console(highlight=False, markup=False), story, turn, ask=ask)


def _play(
    database: Database, story: Story, start: int, policy: str | None, coder: str | None, as_json: bool
) -> None:
    from rich.console import Console

    from kpipe.replay import follow, playback
    from kpipe.replay.lookup import find_run

    run = find_run(database, story.run)
    cast = playback.choose_cast(database, run, story, start, policy=policy, coder=coder)
    again = playback.play(database, run, story, start, cast)
    if as_json:
        _print_json(
            {"stored": follow.as_json(story, None), "again": follow.as_json(again, None), "from": start}
        )
    else:
        follow.print_beside(Console(highlight=False, markup=False), story, again, start)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
