from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe.assets import asset
from kpipe.domain.prompt import (
    PromptTemplate,
    State,
    abridged,
    applied,
    describe,
    load_template,
    render_prompt,
    shorter_prompts,
)
from kpipe.domain.verdict import Outcome
from kpipe.errors import ConfigError

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
    with pytest.raises(ConfigError, match=r"no prompt template 'sede'\. Near: seed") as caught:
        load_template("sede")
    assert "compact, detailed, seed" in caught.value.fix


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("$kernel_b on $device costs $$1")
    template = load_template(str(own))
    assert render_prompt(template, STATE).endswith("on cpu costs $1")
    assert template.sha == hashlib.sha256(own.read_bytes()).hexdigest()
    own.write_text("$kernel_c")
    with pytest.raises(ConfigError, match=r"placeholder that nobody fills: 'kernel_c'") as caught:
        load_template(str(own))
    assert "$kernel_b" in caught.value.fix


def test_a_released_template_is_never_edited() -> None:
    """Stored turns name it by this hash. Another text is another file."""
    assert {name: load_template(name).sha[:16] for name in TEMPLATES} == {
        "compact": "cbf06147d0e4a88b",
        "detailed": "5de52f314569433f",
        "seed": "f210fbeeb385b16d",
    }


def test_the_detailed_template_tells_what_went_wrong_and_what_was_best() -> None:
    state = replace(
        STATE,
        outcome=Outcome.COMPILE_ERROR,
        evidence="error: expected ';'",
        device="NVIDIA H200",
        best_kernel="# the best",
        best_speedup=3.0,
        history=("Fuse it. -> wrong answer", "Tile it. -> correct below 2x"),
    )
    words = render_prompt(load_template("detailed"), state)
    for part in ("NVIDIA H200", "expected ';'", "# the best", "below 4x", "2. Tile it.", STATE.reference):
        assert part in words
    assert "measured" not in render_prompt(load_template("detailed"), STATE), "timings differ from run to run"
    best_is_b = replace(state, best_kernel=state.kernel_b)
    assert render_prompt(load_template("detailed"), best_is_b).count(state.kernel_b) == 1


LONG = State(
    problem_name="gelu",
    reference="# reference\n" * 200,
    kernel_a="# kernel a\n" * 200,
    kernel_b="# kernel b\n" * 200,
    suggestion="Fuse both loops. " * 30,
    outcome=Outcome.WRONG_VALUE,
    evidence="first\n" + "mismatch\n" * 400 + "last",
    best_kernel="# best\n" * 200,
    best_speedup=2.0,
    history=tuple(f"try {n} -> wrong answer" for n in range(6)),
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_trimming_takes_the_least_useful_part_first_and_never_kernel_b(name: str) -> None:
    template = load_template(name)
    whole, shorter = render_prompt(template, LONG), shorter_prompts(template, LONG)
    lengths = [len(text) for text in (whole, *shorter)]
    assert lengths == sorted(set(lengths), reverse=True)
    if name == "compact":
        return
    assert all(LONG.kernel_b in text for text in shorter)
    assert LONG.kernel_a not in shorter[-1]
    assert lengths[-1] < lengths[0] * 0.6
    if name == "detailed":
        parts = ("try 0", LONG.evidence[-2000:], "# best", LONG.reference, LONG.kernel_a)
        lost = [next((i for i, text in enumerate(shorter) if part not in text)) for part in parts]
        assert lost == sorted(lost)


def test_what_is_said_twice_goes_before_anything_is_lost() -> None:
    first = State("gelu", LONG.reference, LONG.reference, LONG.reference)
    (shortest, *_) = shorter_prompts(load_template("detailed"), first)
    assert shortest.count(LONG.reference) == 1
    assert "the same as kernel B" in shortest


@given(st.text(), st.integers(30, 300))
def test_abridged(text: str, most: int) -> None:
    short = abridged(text, most)
    assert short == text if len(text) <= most else len(short) <= most + 60
    assert short[:10] == text[:10] or len(text.strip()) < len(text)


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
