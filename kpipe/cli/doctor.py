"""`kpipe doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, Db, Json

if TYPE_CHECKING:
    from kpipe.cli.checks import Finding

_STYLE = {"ok": "green", "missing": "bold red", "optional": "yellow"}


def doctor(
    db: Db = DEFAULT_DB,
    json: Json = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Load torch and compute something on the GPU.")] = False,
) -> None:
    """Say for each prerequisite whether it is there, and the command that fixes it.

    Exit code 0 when `kpipe run` can work here, 1 when something that it needs is missing.

    Example: kpipe doctor --db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.cli.checks import examine, ready

    findings = examine(db, gpu=gpu)
    if json:
        from dataclasses import asdict
        from json import dumps

        typer.echo(dumps({"ready": ready(findings), "checks": [asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings)
    if not ready(findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from kpipe.cli.checks import ready
    from kpipe.cli.console import console

    table = Table(box=None, show_header=False, pad_edge=False)
    for f in findings:
        text = Text(f.detail)
        if f.fix and f.state != "ok":
            text.append(f"\n-> {f.fix}", style="dim" if f.state == "optional" else "bold")
        table.add_row(f.name, Text(f.state, style=_STYLE[f.state]), text)
    screen = console()
    screen.print(table)
    if ready(findings):
        screen.print("`kpipe run` can work here.")
    else:
        missing = ", ".join(f.name for f in findings if f.state == "missing")
        screen.print(f"`kpipe run` cannot work here yet: {missing}.")
