"""`kpipe bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, ConfigFile, Db, Json, Preset, Set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kpipe.bench.report import Result

SPLITS = ("heldout", "train", "all")


def bench(
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN[:STEP]", help="Version to measure, or none: the coder alone. At most two."),
    ] = None,
    split: Annotated[str, typer.Option(help="Problems: heldout, train or all.")] = "heldout",
    suite: Annotated[str, typer.Option(help="Suite of the problems.")] = "builtin",
    level: Annotated[list[int] | None, typer.Option(help="Only problems of this level.")] = None,
    problem: Annotated[list[str] | None, typer.Option(help="Only this problem; may be repeated.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per problem.")] = 4,
    turns: Annotated[int, typer.Option(min=1, help="Turns of an episode; the best kernel counts.")] = 1,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="The likeliest suggestion, once per problem.")
    ] = False,
    suggestion: Annotated[
        str, typer.Option(help="What the coder alone is told.")
    ] = "Make it as fast as you can.",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the Markdown.")] = None,
    config: ConfigFile = None,
    preset: Preset = None,
    set_: Set = None,
    as_json: Json = False,
    db: Db = DEFAULT_DB,
) -> None:
    """Measure a policy version, or compare two: fast_p, geometric mean speedup, pass@k, best@k, against eager.

    The configuration is that of the version's run, changed by --config and --set. Results are a run of their own;
    the same command goes on where it stopped, and only prints what is measured already.

    Example: kpipe bench --policy default:0 --policy default --split heldout
    """
    from kpipe.bench.plan import Wish, make_plan
    from kpipe.bench.play import measure
    from kpipe.config import load
    from kpipe.errors import UsageError
    from kpipe.store.database import Database

    chosen = policy or ["default"]
    if len(chosen) > 2:
        raise UsageError(f"{len(chosen)} versions are too many to compare.", "Name one or two with --policy.")
    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}.", f"--split is one of: {', '.join(SPLITS)}.")
    wish = Wish(
        split,
        suite,
        tuple(level or ()),
        tuple(problem or ()),
        1 if greedy else samples,
        turns,
        greedy,
        suggestion,
    )
    loaded = load(preset=preset, file=config, overrides=set_ or ())
    with Database.open(db, create=chosen == ["none"]) as database:
        plans = [make_plan(database, name, loaded, wish) for name in chosen]
        results = [measure(database, db, plan) for plan in plans]
        text = _keep(database, results, [plan.run.id for plan in plans], wish.samples, wish.turns, split)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    _print(results, text, as_json)


def _keep(
    database: object, results: Sequence[Result], run_ids: Sequence[int], samples: int, turns: int, split: str
) -> str:
    """Store the figures as an event of each run; the Markdown."""
    from kpipe.bench import report
    from kpipe.store import benchmarks
    from kpipe.store.database import Database

    assert isinstance(database, Database)
    for run_id, result in zip(run_ids, results, strict=True):
        database.write(benchmarks.keep, run_id, report.as_json(result, report.comparison(results)))
    problems = len(results[0].samples)
    about = f"{problems} problems ({split}), {samples} episodes of {turns} turns each."
    return report.markdown(results, about)


def _print(results: Sequence[Result], text: str, as_json: bool) -> None:
    import json

    from kpipe.bench import report

    if as_json:
        compared = report.comparison(results)
        typer.echo(json.dumps([report.as_json(r, compared) for r in results], indent=2))
    else:
        typer.echo(text, nl=False)
