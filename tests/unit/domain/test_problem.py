from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_problem import GOOD

from kpipe.assets import asset
from kpipe.domain.problem import validate_source
from kpipe.errors import ProblemError


def refused(source: str) -> str:
    with pytest.raises(ProblemError) as caught:
        validate_source(source, "mine.py")
    assert caught.value.fix
    assert "mine.py" in caught.value.message
    return caught.value.message


def test_a_problem() -> None:
    validate_source(GOOD, "good.py")


@pytest.mark.parametrize("path", sorted(asset("problems/builtin").rglob("level*/*.py")), ids=lambda p: p.stem)
def test_the_built_in_ones(path: object) -> None:
    validate_source(path.read_text(), path.name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("class Model(", "class Modell(", ["no class Model"]),
        ("def get_inputs", "def get_input", ["no get_inputs()"]),
        ("def get_init_inputs", "def get_init_input", ["no get_init_inputs()"]),
        ("(nn.Module)", "", ["not a torch.nn.Module"]),
        ("def forward", "def backward", ["forward"]),
        ("def forward(self, x)", "def forward(self, x", ["not valid Python", "line"]),
        ("import torch\n", "import torch\n\0", ["NUL"]),
    ],
)
def test_what_is_none_is_refused_with_the_reason(old: str, new: str, words: list[str]) -> None:
    assert old in GOOD
    message = refused(GOOD.replace(old, new, 1))
    for word in words:
        assert word in message


def test_all_that_is_missing_is_named_at_once() -> None:
    message = refused("x = 1\n")
    for word in ("class Model", "get_inputs()", "get_init_inputs()"):
        assert word in message


def test_only_what_is_at_top_level_counts() -> None:
    hidden = "def hide():\n" + "".join(f"    {line}\n" for line in GOOD.splitlines())
    assert "at top level" in refused(hidden)


def test_an_empty_file() -> None:
    refused("")


def test_nesting_beyond_the_parser() -> None:
    refused("(" * 100_000)


@given(st.text())
def test_text_that_is_no_problem_is_refused(source: str) -> None:
    refused(source)
