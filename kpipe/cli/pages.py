"""The sections that `kpipe show` reads, on a terminal or as JSON."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kpipe.cli.console import console
from kpipe.cli.formats import safe, shown

Page = dict[str, Any]

CUT, WIDEST = 160, 10_000
SHORT = 14
"""Characters of a cell that is never broken; longer ones are, where the terminal is too narrow."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+")


def show_once(page: Page, as_json: bool) -> None:
    if as_json:
        print(json.dumps(page, ensure_ascii=False, indent=2))
    else:
        console(highlight=False).print(drawn(page))


def watch_it(read: Callable[[], Page], every_s: float, as_json: bool) -> None:
    """Until Ctrl-C. JSON comes as one line each time; on a terminal the screen is drawn anew."""
    screen = console(highlight=False)
    live = (
        Live(console=screen, auto_refresh=False, screen=True) if screen.is_terminal and not as_json else None
    )
    with suppress(KeyboardInterrupt):
        if live is None:
            while True:
                page = read()
                if as_json:
                    print(json.dumps(page, ensure_ascii=False), flush=True)
                else:
                    screen.print(drawn(page))
                time.sleep(every_s)
        with live:
            while True:
                live.update(drawn(read()), refresh=True)
                time.sleep(every_s)


def drawn(page: Page) -> RenderableType:
    """One thing as facts, many as a table, a text as it is; what is empty says so."""
    parts: list[RenderableType] = []
    for name, section in page.items():
        if isinstance(section, str):
            body: RenderableType = Text(safe(section))
        elif not section:
            body = Text("none", style="dim")
        elif len(section) == 1 and not name.endswith("s"):
            body = _facts(section[0])
        else:
            body = _Rows(section)
        parts += [Text(name, style="bold"), body, Text()]
    return Group(*parts[:-1])


class _Rows:
    """A table, or where the terminal is too narrow for one, each row as facts: nothing is cut."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _table(self.rows)
        needed = Measurement.get(console, options.update(max_width=WIDEST), table).minimum
        if needed <= options.max_width:
            yield table
            return
        for i, row in enumerate(self.rows):
            if i:
                yield Text()
            yield _facts(row)


def _facts(row: dict[str, Any]) -> Table:
    """Name and value; what is not known is left out."""
    grid = Table.grid(padding=(0, 2))
    for name, value in row.items():
        if value is not None:
            grid.add_row(Text(f"  {name}", style="dim"), Text(cell(value)))
    return grid


def _table(rows: list[dict[str, Any]]) -> Table:
    """Columns in which no row says anything are left out; short cells, ids among them, are never broken."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        cells = [cell(row[name]) for row in rows]
        numbers = all(row[name] is None or type(row[name]) in (int, float) for row in rows)
        width = max(map(len, cells))
        table.add_column(
            _header(name, width),
            justify="right" if numbers else "left",
            no_wrap=width <= SHORT,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell(row[name])) for name in names))
    return table


def _header(name: str, width: int) -> str:
    """Broken at its underscores, so that it takes no more room than what stands below it."""
    words = name.split("_")
    return "\n".join(textwrap.wrap(" ".join(words), max(width, *map(len, words), 1)))


def cell(value: Any) -> str:
    """A value in one line: floats to four digits, times to the second, long texts cut."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
        case str() if _TIME.fullmatch(value):
            return value[:19]
        case _:
            text = " ".join(shown(value).split())
            return text if len(text) <= CUT else text[: CUT - 1] + "…"
