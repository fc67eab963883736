"""`kpipe config`."""

from __future__ import annotations

import typer

from kpipe.cli.options import ConfigFile, Json, Preset, Set

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None: ...


@app.command()
def show(
    config: ConfigFile = None,
    preset: Preset = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Print every key with its effective value and where that came from.

    Example: kpipe config show --preset seed --set train.learning_rate=2e-5
    """
    from kpipe import config as configuration

    loaded = configuration.load(preset=preset, file=config, overrides=set_ or ())
    every = configuration.keys()
    rows = [(key, configuration.value_of(loaded.config, key), loaded.origin[key]) for key in every]
    if as_json:
        import json

        typer.echo(
            json.dumps({key: {"value": value, "origin": origin} for key, value, origin in rows}, indent=2)
        )
        return
    from rich.table import Table

    from kpipe.cli.console import console

    about = {key: info.description or "" for key, info in configuration.fields()}
    table = Table(box=None)
    table.add_column("key", no_wrap=True)
    for name in ("value", "from", "meaning"):
        table.add_column(name, overflow="fold")
    for key, value, origin in rows:
        table.add_row(key, _toml(value), origin, about[key])
    console().print(table)


def _toml(value: object) -> str:
    """As it would be written in a file; an unset value is shown as a dash."""
    import json

    return "-" if value is None else json.dumps(value)
