from __future__ import annotations

import random

import pytest

from kpipe.run.progress import clock, sparkline
from kpipe.run.summary import fifths, rise, verdict_sentence


def noisy(mean: float, n: int, rng: random.Random) -> list[float]:
    return [rng.gauss(mean, 0.5) for _ in range(n)]


def test_fifths_are_the_first_and_the_last() -> None:
    assert fifths(range(1, 31)) == (list(range(1, 7)), list(range(25, 31)))
    assert fifths([3, 1]) == ([1], [3])


def test_a_real_rise_is_found_and_said() -> None:
    rng = random.Random(0)
    r = rise({step: noisy(1.0 + step / 20, 64, rng) for step in range(30)})
    assert r is not None
    assert r.p is not None
    assert r.p < 0.01
    assert r.first.low < r.first.value < r.first.high < r.last.low
    assert "is significant" in verdict_sentence(r, 30)


def test_noise_is_not_called_a_rise() -> None:
    """At 1 % about one in a hundred flat runs may pass; of forty, more than three would be a broken test."""
    false = 0
    for seed in range(40):
        rng = random.Random(seed)
        r = rise({step: noisy(1.0 + rng.gauss(0, 0.1), 64, rng) for step in range(30)})
        assert r is not None
        false += "is significant" in verdict_sentence(r, 30)
    assert false <= 3


def test_a_fall_is_said() -> None:
    rng = random.Random(1)
    r = rise({step: noisy(2.0 - step / 20, 64, rng) for step in range(30)})
    assert r is not None
    assert verdict_sentence(r, 30) == "The mean reward did not rise."


def test_few_updates_make_no_claim() -> None:
    r = rise({1: [1.0, 1.0], 2: [9.0, 9.0]})
    assert r is not None
    assert "too few" in verdict_sentence(r, 2)
    assert r.factor == pytest.approx(9.0)


def test_fewer_than_two_updates_have_no_rise() -> None:
    assert rise({}) is None
    assert rise({1: [1.0]}) is None
    assert rise({1: [1.0], 2: []}) is None


def test_a_factor_needs_a_positive_start() -> None:
    r = rise({1: [-1.0], 2: [1.0]})
    assert r is not None
    assert r.factor is None


def test_sparkline_spans_low_to_high() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == "-"


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3661)] == ["0:00", "1:00", "1:01", "1:01:01"]
