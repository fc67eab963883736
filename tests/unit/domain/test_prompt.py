from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe.assets import asset
from kpipe.domain.prompt import PromptTemplate, State, applied, describe, load_template, render_prompt
from kpipe.domain.verdict import Outcome

TEMPLATES = sorted(p.stem for p in asset("prompts").glob("*.txt"))
STATE = State(
    problem_name="gelu",
    reference="class Model: pass",
    kernel_a="# kernel a",
    kernel_b="# applied: fuse, vectorize\nclass ModelNew: pass",
    suggestion="Fuse both loops.",
    outcome=Outcome.CORRECT,
    speedup=1.5,
    evidence="measured",
)
EVERYTHING = "$problem|$reference|$kernel_a|$kernel_b|$suggestion|$result|$applied|$evidence|$$"


def test_every_placeholder_is_filled() -> None:
    filled = render_prompt(PromptTemplate("all", EVERYTHING), STATE).split("|")
    assert filled == [
        "gelu",
        "class Model: pass",
        "# kernel a",
        STATE.kernel_b,
        "Fuse both loops.",
        "correct below 2x",
        "fuse, vectorize",
        "measured",
        "$",
    ]


def test_at_the_start_there_is_nothing_to_tell() -> None:
    filled = render_prompt(PromptTemplate("all", EVERYTHING), State("gelu", "r", "r", "r")).split("|")
    assert filled[4:] == ["none", "baseline", "none", "none", "$"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_shipped_templates(name: str) -> None:
    template = load_template(name)
    assert template.sha == hashlib.sha256(template.text.encode()).hexdigest()
    words = render_prompt(template, STATE)
    assert "Fuse both loops." in words
    assert "correct below 2x" in words
    assert "$" not in words


def test_the_seeds_template_shows_both_kernels() -> None:
    words = render_prompt(load_template("seed"), STATE)
    assert words.index(STATE.kernel_a) < words.index("Fuse both loops.") < words.index(STATE.kernel_b)


def test_a_template_that_does_not_ship() -> None:
    with pytest.raises(FileNotFoundError, match="poem"):
        load_template("poem")


def test_a_placeholder_that_nobody_fills_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        render_prompt(PromptTemplate("typo", "$kernel_c"), STATE)


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_read_again(kernel: str, suggestion: str) -> None:
    """Dollar signs and names of placeholders in kernels stay what they are."""
    for extra in ("", "$kernel_a ${suggestion} $$ $nobody $"):
        state = State("p", "r", kernel + extra, "b", suggestion=f"x{suggestion}{extra}")
        words = render_prompt(PromptTemplate("two", "$kernel_a<->$suggestion"), state)
        assert words == f"{kernel}{extra}<->x{suggestion}{extra}"


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("# applied: tile\nx = 1", "tile"),
        ("x = 1\n# applied:  tile, fuse  \n# applied: other", "tile, fuse"),
        ("# applied: \n", "none"),
        ("x = '# applied: no'", "none"),
        ("", "none"),
    ],
)
def test_what_was_applied(kernel: str, expected: str) -> None:
    assert applied(kernel) == expected


@pytest.mark.parametrize(
    ("outcome", "speedup", "expected"),
    [
        (None, None, "baseline"),
        (Outcome.UNCHANGED, None, "nothing changed"),
        (Outcome.COMPILE_ERROR, None, "does not compile"),
        (Outcome.LOAD_ERROR, None, "does not compile"),
        (Outcome.WRONG_VALUE, None, "wrong answer"),
        (Outcome.TIMEOUT, None, "wrong answer"),
        (Outcome.CORRECT, 0.29, "correct below 0.3x"),
        (Outcome.CORRECT, 0.3, "correct below 1x"),
        (Outcome.CORRECT, 1.0, "correct below 2x"),
        (Outcome.CORRECT, 3.99, "correct below 4x"),
        (Outcome.CORRECT, 4.0, "correct 4x and more"),
    ],
)
def test_results_in_coarse_words(outcome: Outcome | None, speedup: float | None, expected: str) -> None:
    assert describe(outcome, speedup) == expected


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_words(outcome: Outcome) -> None:
    assert describe(outcome, 1.0)
