"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DB = "sqlite:///kpipe.db"
LARGEST_ID = 2**63 - 1

Db = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="KPIPE_DB",
        help="Trajectory database: sqlite:///PATH or postgresql://USER@HOST/NAME.",
        show_default=True,
    ),
]
RunName = Annotated[str, typer.Option("--run", help="Name of the run.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see examples/.")]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", "-p", help="Values to start from: embedded (the default), seed, kevin, drkernel."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override one value: train.learning_rate=1e-5.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
