"""The few statistics that summaries and verdicts need. Standard library only."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
