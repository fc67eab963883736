"""From episodes to the usual figures, with their uncertainty. Pure.

An interval is bootstrapped over problems: samples of one problem resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from kpipe.domain.stats import Interval, bootstrap, expected_best, pass_at_k, sign_flip_p
from kpipe.store.records import Episode

THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Samples:
    """The speedups of one problem's samples; None for one without a correct kernel."""

    problem: str
    speedups: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of two versions on the same problems; `p` is two-sided, by flipping signs of paired differences."""

    name: str
    first: float
    second: float
    p: float


def by_problem(episodes: Sequence[Episode]) -> list[Samples]:
    """Samples that the machine could not judge are left out; a coder without code counts as not correct."""
    names = dict.fromkeys(e.problem for e in episodes)
    judged = [e for e in episodes if e.speedup is not None or not e.unjudged]
    every = [Samples(name, tuple(e.speedup for e in judged if e.problem == name)) for name in names]
    return [s for s in every if s.speedups]


def figures(samples: Sequence[Samples]) -> list[Figure]:
    """fast_p, geometric mean speedup, and pass@k and best@k for the k that every problem has."""
    most = min((len(s.speedups) for s in samples), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < most] + ([most] if most else [])
    wanted: list[tuple[str, Callable[[Sequence[Samples]], float | None]]] = [
        *((f"fast_{p:g}", _mean(lambda s, p=p: fast(s, p))) for p in THRESHOLDS),  # type: ignore[misc]
        ("geometric mean speedup of correct kernels", geometric_mean_speedup),
        *((f"pass@{k}", _mean(lambda s, k=k: passed(s, k))) for k in ks),  # type: ignore[misc]
        *((f"best@{k} speedup", _exp_mean(lambda s, k=k: log_best(s, k))) for k in ks),  # type: ignore[misc]
    ]
    return [Figure(name, bootstrap(samples, statistic) if samples else None) for name, statistic in wanted]


def compare(first: Sequence[Samples], second: Sequence[Samples]) -> list[Comparison]:
    """Problem by problem, over the problems that both have."""
    ours, theirs = ({s.problem: s for s in side} for side in (first, second))
    pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
    if not pairs:
        return []
    wanted: list[tuple[str, Callable[[Samples], float], Callable[[float], float]]] = [
        *((f"fast_{p:g}", lambda s, p=p: fast(s, p), float) for p in THRESHOLDS),
        ("best@1 speedup", lambda s: log_best(s, 1), math.exp),
    ]
    found = []
    for name, of, shown in wanted:
        a, b = [of(x) for x, _ in pairs], [of(y) for _, y in pairs]
        p = sign_flip_p([y - x for x, y in zip(a, b, strict=True)])
        found.append(Comparison(name, shown(fmean(a)), shown(fmean(b)), p))
    return found


def fast(s: Samples, p: float) -> float:
    """Share of samples that are correct and more than p times as fast as the reference (fast_p of KernelBench)."""
    return fmean(x is not None and x > p for x in s.speedups)


def passed(s: Samples, k: int) -> float:
    return pass_at_k(len(s.speedups), sum(x is not None for x in s.speedups), k)


def log_best(s: Samples, k: int) -> float:
    """Expected log speedup of the best of k samples; whoever has nothing faster keeps the reference."""
    return expected_best([math.log(max(x or 1.0, 1.0)) for x in s.speedups], k)


def geometric_mean_speedup(samples: Sequence[Samples]) -> float | None:
    """Over correct kernels; None when there is none."""
    correct = [math.log(x) for s in samples for x in s.speedups if x is not None]
    return math.exp(fmean(correct)) if correct else None


def _mean(of: Callable[[Samples], float]) -> Callable[[Sequence[Samples]], float]:
    return lambda samples: fmean(of(s) for s in samples)


def _exp_mean(of: Callable[[Samples], float]) -> Callable[[Sequence[Samples]], float]:
    return lambda samples: math.exp(fmean(of(s) for s in samples))
