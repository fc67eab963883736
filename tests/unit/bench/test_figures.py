"""Figures of a benchmark, against their definitions written out."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import pytest

from kpipe.bench.figures import Samples, by_problem, compare, figures, log_best
from kpipe.bench.report import Result, as_json, comparison, markdown
from kpipe.domain.stats import bootstrap, expected_best, pass_at_k, sign_flip_p
from kpipe.store.records import Episode

A = Samples("a", (None, 0.8, 1.6, 3.0))
B = Samples("b", (None, None, 1.2, 0.4))


def value(samples: list[Samples], name: str) -> float:
    (interval,) = [f.interval for f in figures(samples) if f.name == name]
    assert interval
    assert interval.low <= interval.value <= interval.high
    return interval.value


@pytest.mark.parametrize(
    ("name", "expected"), [("0", 5 / 8), ("0.5", 4 / 8), ("1", 3 / 8), ("1.5", 2 / 8), ("2", 1 / 8)]
)
def test_fast_p(name: str, expected: float) -> None:
    assert value([A, B], f"fast_{name}") == pytest.approx(expected)


def test_geometric_mean_is_over_correct_kernels() -> None:
    assert value([A, B], "geometric mean speedup of correct kernels") == pytest.approx(
        (0.8 * 1.6 * 3.0 * 1.2 * 0.4) ** (1 / 5)
    )


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_and_best_at_k_are_means_over_all_choices(k: int) -> None:
    def over_choices(s: Samples) -> tuple[float, float]:
        chosen = list(itertools.combinations(s.speedups, k))
        best = [max(math.log(max(x or 1, 1)) for x in c) for c in chosen]
        return fmean(any(x is not None for x in c) for c in chosen), fmean(best)

    (pass_a, best_a), (pass_b, best_b) = over_choices(A), over_choices(B)
    assert value([A, B], f"pass@{k}") == pytest.approx((pass_a + pass_b) / 2)
    assert value([A, B], f"best@{k} speedup") == pytest.approx(math.exp((best_a + best_b) / 2))


def test_nothing_correct_has_no_speedup() -> None:
    found = {f.name: f.interval for f in figures([Samples("a", (None, None))])}
    assert found["geometric mean speedup of correct kernels"] is None
    assert found["best@2 speedup"] is not None
    assert all(f.interval is None for f in figures([]))


def test_what_counts_as_a_sample() -> None:
    episodes = [
        Episode(1, "a", 0, 2.0, 0, 0, 1),
        Episode(1, "a", 1, None, 1, 1, 1),  # the machine failed: left out
        Episode(1, "a", 2, None, 0, 1, 1),  # the coder failed: not correct
        Episode(1, "b", 0, None, 1, 1, 1),
    ]
    assert by_problem(episodes) == [Samples("a", (2.0, None))]
    assert Result("x", "r", episodes).left_out == 2


@pytest.mark.parametrize("call", [lambda: pass_at_k(3, 1, 4), lambda: expected_best([1.0], 2)])
def test_more_than_there_are(call: object) -> None:
    with pytest.raises(ValueError, match="not in"):
        call()  # type: ignore[operator]


def test_sign_flips() -> None:
    assert sign_flip_p([1.0, 1.0, 1.0]) == 2 / 8
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert sign_flip_p([1.0, -1.0, 0.5, -0.5]) == 1.0
    assert sign_flip_p([1.0] * 20) < 0.001
    assert sign_flip_p([1.0, -1.0] * 10) > 0.9


def test_the_interval_of_a_mean_covers_it() -> None:
    found = bootstrap([1.0, 2.0, 3.0, 4.0], lambda xs: fmean(xs))
    assert found
    assert 1.0 <= found.low < 2.5 < found.high <= 4.0


def test_two_versions_on_the_problems_that_both_have() -> None:
    other = Samples("a", (2.0, 2.0))
    by_name = {c.name: c for c in compare([A, B], [other])}
    assert (by_name["fast_1"].first, by_name["fast_1"].second) == (0.5, 1.0)
    assert by_name["fast_1"].p == 1.0, "one pair shows nothing"
    assert by_name["best@1 speedup"].second == pytest.approx(2.0)
    assert log_best(A, 4) == pytest.approx(math.log(3.0))
    assert compare([A], [Samples("z", (1.0,))]) == []


def test_markdown_and_json_of_two_versions() -> None:
    results = [
        Result(label, f"bench-{label}", [Episode(1, "a", i, x, 0, 0, 1) for i, x in enumerate(speedups)])
        for label, speedups in (("r:0", (None, 1.5)), ("r:9", (2.0, 2.5)))
    ]
    text = markdown(results, "1 problem.")
    assert "| figure | r:0 | r:9 |" in text
    assert "| fast_1 | 0.500 [" in text
    assert "Paired comparison" in text
    assert "| a | 1.500 (1/2 correct) | 2.500 (2/2 correct) |" in text
    tree = as_json(results[0], comparison(results))
    assert tree["problems"] == {"a": [None, 1.5]}
    assert tree["figures"]["pass@2"]["value"] == 1.0
