"""The few statistics that summaries and verdicts need. Standard library only."""

from __future__ import annotations

import itertools
import math
import operator
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided confidence bounds."""

    value: float
    low: float
    high: float


def bootstrap_mean(xs: Sequence[float], *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979). Raises ValueError on an empty sample."""
    if not xs:
        raise ValueError("no samples")
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(xs, k=len(xs))) for _ in range(draws))
    tail = (1 - level) / 2
    return Interval(
        statistics.fmean(xs), means[int(tail * draws)], means[min(draws - 1, int((1 - tail) * draws))]
    )


def permutation_p(
    before: Sequence[float], after: Sequence[float], *, draws: int = 10_000, seed: int = 0
) -> float:
    """One-sided p-value that `after` has the larger mean: a permutation test (Fisher), with the
    add-one rule of Phipson and Smyth (2010), so it is never zero.
    """
    if not before or not after:
        raise ValueError("both samples must have members")
    rng = random.Random(seed)
    pool, n = [*before, *after], len(after)
    observed, total = statistics.fmean(after) - statistics.fmean(before), sum(pool)
    hits = 0
    for _ in range(draws):
        part = sum(rng.sample(pool, n))
        if part / n - (total - part) / len(before) >= observed - 1e-12:
            hits += 1
    return (hits + 1) / (draws + 1)


def median_interval(xs: Sequence[float], *, z: float = 1.96) -> Interval:
    """Median with its distribution-free interval from order statistics (David and Nagaraja 2003, 7.1)."""
    if not xs:
        raise ValueError("no samples")
    s, n = sorted(xs), len(xs)
    rank = max(1, math.floor((n + 1) / 2 - z * math.sqrt(n) / 2))
    return Interval(statistics.median(s), s[rank - 1], s[n - rank])


def geometric_mean(xs: Sequence[float]) -> float:
    """Raises ValueError on an empty sample or a value that is not positive."""
    if not xs or min(xs) <= 0:
        raise ValueError("the geometric mean needs positive values")
    return math.exp(statistics.fmean(math.log(x) for x in xs))


def pass_at_k(n: int, good: int, k: int) -> float:
    """Probability that one of k of n samples is good, without bias (Chen et al. 2021)."""
    if not 0 < k <= n:
        raise ValueError(f"k = {k} is not in 1..{n}")
    return 1.0 - math.comb(n - good, k) / math.comb(n, k)


def expected_best(xs: Sequence[float], k: int) -> float:
    """Mean of the largest of k of these values, over all ways to choose k."""
    if not 0 < k <= len(xs):
        raise ValueError(f"k = {k} is not in 1..{len(xs)}")
    ways = math.comb(len(xs), k)
    return math.fsum(x * math.comb(i, k - 1) / ways for i, x in enumerate(sorted(xs)))


def bootstrap(
    clusters: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """A statistic with its percentile interval when whole clusters are drawn again; None where it has no value."""
    value = statistic(clusters)
    if value is None:
        return None
    rng = random.Random(seed)
    drawn = (statistic(rng.choices(clusters, k=len(clusters))) for _ in range(draws))
    values = sorted(v for v in drawn if v is not None)
    tail = (1 - level) / 2
    last = len(values) - 1
    return Interval(value, values[int(tail * last)], values[math.ceil((1 - tail) * last)])


def sign_flip_p(differences: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value that paired differences have mean 0: exact up to 2^12 sign patterns, else sampled with
    the add-one rule.
    """
    n, observed = len(differences), abs(math.fsum(differences)) - 1e-12
    if n == 0:
        raise ValueError("no pairs")
    if n <= 12:
        patterns = itertools.product((1, -1), repeat=n)
        hits = sum(abs(math.fsum(map(operator.mul, s, differences))) >= observed for s in patterns)
        return float(hits / 2**n)
    rng = random.Random(seed)
    hits = sum(
        abs(math.fsum(d if rng.random() < 0.5 else -d for d in differences)) >= observed for _ in range(draws)
    )
    return (hits + 1) / (draws + 1)
