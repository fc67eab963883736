"""`kpipe problems`."""

from __future__ import annotations

from typing import Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, Db, Json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_problems(db: Db = DEFAULT_DB, as_json: Json = False) -> None:
    """List the built-in problems and those that were added to the database.

    Example: kpipe problems list --json
    """
    import json

    rows = [(p.suite, p.level, p.name, p.split, len(p.source.splitlines())) for p in _known(db)]
    if as_json:
        names = ("suite", "level", "name", "split", "lines")
        typer.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    from rich.table import Table

    from kpipe.cli.console import console

    table = Table("suite", "level", "name", "split", "lines", box=None)
    for row in rows:
        table.add_row(*map(str, row))
    console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="Name of a problem.")], db: Db = DEFAULT_DB) -> None:
    """Print the reference of a problem.

    Example: kpipe problems show gelu
    """
    found = _chosen(db, [name])
    for p in found:
        if len(found) > 1:
            typer.echo(f"# {p.suite}, level {p.level}, {p.split}")
        typer.echo(p.source)


@app.command()
def add(
    where: Annotated[
        str,
        typer.Argument(
            metavar="PATH_OR_ID",
            help="A file, a folder, a KernelBench checkout, a .parquet file, or a Hugging Face data set.",
        ),
    ] = "ScalingIntelligence/KernelBench",
    suite: Annotated[
        str | None, typer.Option(help="Suite to add to; by default named after the source.")
    ] = None,
    split: Annotated[str, typer.Option(help="train or heldout.")] = "train",
    heldout_every: Annotated[
        int, typer.Option(min=0, help="Put every N-th problem into the held-out split; 0 for none.")
    ] = 0,
    db: Db = DEFAULT_DB,
) -> None:
    """Add problems to the database: all of them, or none when one is refused.

    Example: kpipe problems add path/to/KernelBench --heldout-every 5
    """
    from kpipe import problems
    from kpipe.domain.problem import Problem
    from kpipe.errors import UsageError
    from kpipe.store import catalog
    from kpipe.store.database import Database

    if split not in ("train", "heldout"):
        raise UsageError(f"--split {split} is neither train nor heldout.", "Choose one of the two.")
    if suite is not None and not suite.strip():
        raise UsageError("--suite is empty.", "Give a name, or leave it out.")
    if suite == problems.BUILTIN_SUITE:
        raise UsageError("The suite name 'builtin' belongs to kpipe.", "Choose another with --suite.")
    found = problems.load(where, suite=suite, heldout_every=heldout_every, split=split)  # type: ignore[arg-type]
    database = Database.open(db, create=True)

    def add_all(conn: object, all_: list[Problem]) -> int:
        return sum(catalog.add(conn, p)[1] for p in all_)  # type: ignore[arg-type]

    try:
        added = database.write(add_all, found)
    finally:
        database.close()
    old = len(found) - added
    known = f", {old} were there already" if old else ""
    typer.echo(f"{added} problem{'' if added == 1 else 's'} added to suite {found[0].suite!r}{known}.")


@app.command()
def audit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Problems; by default all that are known.")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile", help="Time torch.compile beside eager; the first takes longest."
        ),
    ] = True,
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Look for problems that can be passed without work, and time their references on one core.

    Exit code 1 when something was found. Rules: docs/problems.md.

    Example: kpipe problems audit gelu softmax --no-compile
    """
    import json
    from dataclasses import asdict

    from kpipe.config import EvaluateConfig
    from kpipe.evaluate.audit import audit as audit_one

    results = []
    for problem in _chosen(db, names or []):
        result = audit_one(problem, EvaluateConfig(), compiled=compiled)
        results.append(result)
        if not as_json:
            times = (("eager", result.eager_ms), ("torch.compile", result.compiled_ms))
            shown = ", ".join(f"{name} {ms:.3g} ms" for name, ms in times if ms is not None)
            typer.echo(f"{result.suite}/{result.name}: {shown or 'not timed'}")
            for finding in result.findings:
                typer.echo(f"  {finding.rule}: {finding.text}")
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in results], indent=2))
    if any(r.findings for r in results):
        raise typer.Exit(1)


def _chosen(db: str, names: list[str]):  # type: ignore[no-untyped-def]
    """The known problems of these names, or all. Raises UsageError."""
    from kpipe.domain.near import near
    from kpipe.errors import UsageError

    known = _known(db)
    for name in names:
        if all(p.name != name for p in known):
            hint = near(name, [p.name for p in known])
            raise UsageError(f"There is no problem {name!r}.{hint}", "`kpipe problems list` shows all.")
    return [p for p in known if not names or p.name in names]


def _known(db: str):  # type: ignore[no-untyped-def]
    """Built-in problems, and those of the database when there is one."""
    from pathlib import Path

    from kpipe import problems
    from kpipe.store import catalog
    from kpipe.store.database import Database

    found = list(problems.builtin())
    if db.startswith("sqlite:///") and not Path(db.removeprefix("sqlite:///")).exists():
        return found
    database = Database.open(db)
    try:
        for suite in database.read(catalog.suites):
            if suite != problems.BUILTIN_SUITE:
                found += [s.problem for s in database.read(catalog.select, suite, "all", (), ())]
    finally:
        database.close()
    return found
