from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe.domain.stats import bootstrap_mean, geometric_mean, median_interval, permutation_p

numbers = st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=40)


def sample(rng: random.Random, n: int, mean: float = 0.0) -> list[float]:
    return [rng.gauss(mean, 1.0) for _ in range(n)]


@given(numbers)
def test_intervals_hold_their_estimate_and_stay_in_the_sample(xs: list[float]) -> None:
    for got, value in (
        (bootstrap_mean(xs, draws=50), statistics.fmean(xs)),
        (median_interval(xs), statistics.median(xs)),
    ):
        assert got.value == value
        assert min(xs) <= got.low <= got.high <= max(xs)
    assert median_interval(xs).low <= statistics.median(xs) <= median_interval(xs).high


@pytest.mark.parametrize("function", [bootstrap_mean, median_interval, geometric_mean])
def test_an_empty_sample_says_nothing(function: Callable[[list[float]], object]) -> None:
    with pytest.raises(ValueError, match=r"no samples|positive"):
        function([])


def test_the_same_seed_gives_the_same_answer() -> None:
    xs = sample(random.Random(0), 30)
    assert bootstrap_mean(xs, seed=1) == bootstrap_mean(xs, seed=1)
    assert bootstrap_mean(xs, seed=1) != bootstrap_mean(xs, seed=2)
    assert permutation_p(xs, xs[::-1], seed=1) == permutation_p(xs, xs[::-1], seed=1)


def coverage(interval: Callable[[list[float]], object], n: int, trials: int = 300) -> float:
    """Share of samples of a standard normal whose interval holds its centre."""
    rng = random.Random(7)
    found = [interval(sample(rng, n)) for _ in range(trials)]
    return sum(i.low <= 0.0 <= i.high for i in found) / trials  # type: ignore[attr-defined]


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    assert 0.90 <= coverage(lambda xs: bootstrap_mean(xs, draws=300), 40) <= 0.99
    assert 0.93 <= coverage(median_interval, 30) <= 1.0
    assert 0.90 <= coverage(median_interval, 100) <= 1.0


@pytest.mark.parametrize(("n", "rank"), [(6, 1), (10, 2), (20, 6), (30, 10), (50, 18), (100, 40)])
def test_ranks_of_the_tables(n: int, rank: int) -> None:
    """The narrowest ranks whose exact (binomial) confidence is 95 % or more."""
    got = median_interval(list(range(1, n + 1)))
    assert (got.low, got.high) == (rank, n + 1 - rank)
    outside = 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n
    assert outside <= 0.05 < outside + 2 * math.comb(n, rank) / 2**n


@given(numbers)
def test_the_median_s_interval_has_no_preferred_side(xs: list[float]) -> None:
    there, back = median_interval(xs), median_interval([-x for x in xs])
    assert (back.low, back.high) == (-there.high, -there.low)


def test_wider_levels_give_wider_intervals() -> None:
    xs = sample(random.Random(3), 50)
    narrow, wide = bootstrap_mean(xs, level=0.5), bootstrap_mean(xs, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_more_pairs_narrow_the_median() -> None:
    rng = random.Random(5)
    widths = [(i := median_interval(sample(rng, n))).high - i.low for n in (20, 200, 2000)]
    assert widths[0] > widths[1] > widths[2]


def test_a_real_difference_is_found_and_its_opposite_is_not() -> None:
    rng = random.Random(0)
    low, high = sample(rng, 40), sample(rng, 40, mean=1.0)
    assert permutation_p(low, high, draws=2000) < 0.01
    assert permutation_p(high, low, draws=2000) > 0.99


def test_p_values_of_no_difference_are_uniform() -> None:
    rng = random.Random(1)
    ps = sorted(permutation_p(sample(rng, 12), sample(rng, 12), draws=200) for _ in range(200))
    assert all(0 < p <= 1 for p in ps)
    distance = max(abs(p - (i + 0.5) / len(ps)) for i, p in enumerate(ps))
    assert distance < 1.63 / math.sqrt(len(ps))  # Kolmogorov-Smirnov at 1 %


def test_samples_of_equal_numbers_differ_in_nothing() -> None:
    assert permutation_p([1.0] * 5, [1.0] * 7, draws=100) == 1.0
    assert permutation_p([0.1] * 3, [0.1] * 3, draws=100) == 1.0


def test_against_an_exact_enumeration() -> None:
    """Of the 20 ways to choose 3 of 6, only the observed one has so large a difference."""
    assert permutation_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], draws=20_000) == pytest.approx(1 / 20, abs=0.01)


def test_both_samples_are_needed() -> None:
    for before, after in (([], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="both samples"):
            permutation_p(before, after)


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([3.0] * 5) == pytest.approx(3.0)
    assert geometric_mean([1e-300, 1e300]) == pytest.approx(1.0)
    for bad in ([1.0, 0.0], [-1.0]):
        with pytest.raises(ValueError, match="positive"):
            geometric_mean(bad)
