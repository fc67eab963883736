"""What a run achieved, said with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kpipe.domain.stats import Interval, bootstrap_mean, permutation_p

SIGNIFICANT = 0.01
FEWEST_UPDATES = 10


@dataclass(frozen=True, slots=True)
class Rise:
    """A quantity over the first and over the last fifth of the updates.

    The intervals are bootstrapped over samples. `p` is one-sided, from a permutation test over the
    means of whole updates: the samples of one update come from one policy and are not independent.
    """

    first: Interval
    last: Interval
    p: float | None

    @property
    def factor(self) -> float | None:
        return self.last.value / self.first.value if self.first.value > 0 else None


def fifths(steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """The first and the last fifth of the updates, at least one each."""
    ordered = sorted(steps)
    n = max(1, len(ordered) // 5)
    return ordered[:n], ordered[-n:]


def rise(by_step: Mapping[int, Sequence[float]]) -> Rise | None:
    """None before there are two updates."""
    filled = {step: xs for step, xs in by_step.items() if xs}
    if len(filled) < 2:
        return None
    first, last = fifths(list(filled))
    pooled = [[x for step in part for x in filled[step]] for part in (first, last)]
    means = [[fmean(filled[step]) for step in part] for part in (first, last)]
    p = permutation_p(means[0], means[1]) if len(filled) >= FEWEST_UPDATES else None
    return Rise(bootstrap_mean(pooled[0]), bootstrap_mean(pooled[1]), p)


def verdict_sentence(r: Rise, updates: int) -> str:
    """One honest sentence about the mean reward."""
    if r.p is None:
        return f"{updates} updates are too few to say whether the mean reward rose ({FEWEST_UPDATES} are needed)."
    if r.last.value <= r.first.value:
        return "The mean reward did not rise."
    if r.p < SIGNIFICANT:
        return f"The rise of the mean reward is significant (p = {r.p:.2g}, permutation test over updates)."
    return f"The rise of the mean reward is NOT significant (p = {r.p:.2g} >= {SIGNIFICANT}, permutation test over updates)."
