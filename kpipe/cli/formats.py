"""Rows of a question as table, CSV, JSON or Markdown. Everything is written as it comes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, TextIO

BLOCK = 500
"""Rows that are aligned with one another in a table: only so many are held in memory."""
GAP = "  "
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def write(
    out: TextIO, form: Format, columns: Sequence[str], rows: Iterable[Sequence[Any]], width: int
) -> None:
    """`width` in characters, for tables: rows that do not fit are written one column per line."""
    match form:
        case Format.TABLE:
            _table(out, columns, rows, width)
        case Format.CSV:
            lines = csv.writer(out, lineterminator="\n")
            lines.writerow(columns)
            lines.writerows([_exact(v) for v in row] for row in rows)
        case Format.JSON:
            _json(out, columns, rows)
        case Format.MARKDOWN:
            _markdown(out, columns, rows)


def safe(text: str) -> str:
    """Text of a model must not steer the terminal: control characters but tab and newline become U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


def shown(value: Any) -> str:
    """A value for people."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6g}" if abs(value) < 1e15 else repr(value)
        case bytes():
            return f"<{len(value)} bytes>"
        case dict() | list():
            return safe(json.dumps(value, ensure_ascii=False))
        case _:
            return safe(str(value))


def _exact(value: Any) -> Any:
    """A value for programs: blobs as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else value


def _nested(value: Any) -> Any:
    """JSON inside of JSON is opened; all other text stays text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return _exact(value)


def _json(out: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    names = _distinct(columns)
    out.write("[")
    for i, row in enumerate(rows):
        record = {name: _nested(v) for name, v in zip(names, row, strict=True)}
        out.write(f"{',' if i else ''}\n  {json.dumps(record, ensure_ascii=False)}")
    out.write("\n]\n")


def _distinct(columns: Sequence[str]) -> list[str]:
    """A JSON object has a name once: the second `id` of a join becomes `id_2`."""
    seen: dict[str, int] = {}
    names = []
    for column in columns:
        seen[column] = seen.get(column, 0) + 1
        names.append(column if seen[column] == 1 else f"{column}_{seen[column]}")
    return names


def _markdown(out: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", "<br>") for c in cells) + " |\n"

    out.write(line(columns) + line(["---"] * len(columns)))
    for row in rows:
        out.write(line(shown(v) for v in row))


def _table(out: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]], width: int) -> None:
    count = 0
    for block in _blocks(rows):
        cells = [[shown(v) for v in row] for row in block]
        if _fits(columns, cells, width):
            _aligned(out, columns, block, cells)
        else:
            _one_by_one(out, columns, cells, count)
        count += len(block)
    out.write(f"({count} row{'' if count == 1 else 's'})\n")


def _blocks(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    rest = iter(rows)
    while block := list(islice(rest, BLOCK)):
        yield block


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(text) for text in texts) for texts in zip(columns, *cells, strict=True)]


def _fits(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> bool:
    if any("\n" in text for row in cells for text in row):
        return False
    return sum(_widths(columns, cells)) + len(GAP) * (len(columns) - 1) <= width


def _aligned(
    out: TextIO, columns: Sequence[str], block: Sequence[Sequence[Any]], cells: Sequence[Sequence[str]]
) -> None:
    """Numbers to the right, everything else to the left."""
    from rich.cells import cell_len

    widths = _widths(columns, cells)
    right = [all(v is None or type(v) in (int, float) for v in values) for values in zip(*block, strict=True)]
    for row in (columns, ["-" * w for w in widths], *cells):
        pads = [" " * (w - cell_len(text)) for w, text in zip(widths, row, strict=True)]
        line = (p + t if r else t + p for t, p, r in zip(row, pads, right, strict=True))
        out.write(GAP.join(line).rstrip() + "\n")


def _one_by_one(out: TextIO, columns: Sequence[str], cells: Sequence[Sequence[str]], before: int) -> None:
    indent = max(map(len, columns)) + len(GAP)
    for number, row in enumerate(cells, before + 1):
        out.write(f"-- row {number}\n")
        for name, text in zip(columns, row, strict=True):
            out.write(f"{name:<{indent}}{text.replace(chr(10), chr(10) + ' ' * indent)}\n")
