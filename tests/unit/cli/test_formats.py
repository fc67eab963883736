"""Answers as text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kpipe.cli.formats import BLOCK, Format, safe, write


def text(form: Format, columns: list[str], rows: Any, width: int = 80) -> str:
    out = io.StringIO()
    write(out, form, columns, rows, width)
    return out.getvalue()


def test_a_table_aligns_numbers_right_and_text_left() -> None:
    assert text(Format.TABLE, ["name", "speedup"], [("gelu", 2.0), ("softmax", 10.25), ("日本", None)]) == (
        "name     speedup\n-------  -------\ngelu           2\nsoftmax    10.25\n日本        NULL\n(3 rows)\n"
    )


@pytest.mark.parametrize("rows", [[("a" * 30, 1)], [("two\nlines", 1)]])
def test_what_does_not_fit_is_written_one_column_per_line(rows: list[tuple[str, int]]) -> None:
    said = text(Format.TABLE, ["text", "n"], rows, width=20).splitlines()
    assert said[0] == "-- row 1"
    assert said[1].startswith("text  ")
    assert said[-2:] == ["n     1", "(1 row)"]


def test_a_table_of_many_rows_is_written_in_blocks() -> None:
    """The first block is out before the row after it is asked for."""
    out = io.StringIO()

    def rows() -> Iterator[tuple[int]]:
        for i in range(2 * BLOCK):
            if i == BLOCK:
                assert str(BLOCK - 1) in out.getvalue()
            yield (i,)

    write(out, Format.TABLE, ["n"], rows(), 80)
    assert out.getvalue().endswith(f"({2 * BLOCK} rows)\n")


def test_text_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in text(Format.TABLE, ["a"], [("\x1b[2Jgone\x07",)])
    assert safe("tab\tand\nline") == "tab\tand\nline"
    assert safe("\x9b31m") == "\ufffd31m"


def test_json_keeps_every_column_of_a_join_and_opens_json() -> None:
    rows = [(1, 2, '{"a": [1]}', "{no json", b"\x00\xff", None)]
    (found,) = json.loads(text(Format.JSON, ["id", "id", "config", "kernel", "data", "n"], rows))
    assert found == {
        "id": 1,
        "id_2": 2,
        "config": {"a": [1]},
        "kernel": "{no json",
        "data": "00ff",
        "n": None,
    }


def test_json_of_nothing_is_an_empty_list() -> None:
    assert json.loads(text(Format.JSON, ["a"], [])) == []


def test_markdown_cells_stay_in_their_cells() -> None:
    said = text(Format.MARKDOWN, ["a", "b"], [("x|y\nz", None)])
    assert said.splitlines()[-1] == "| x\\|y<br>z | NULL |"
