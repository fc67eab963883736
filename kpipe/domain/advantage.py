"""Discounted returns and group advantages, in plain floats: these go into the database."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

Estimator = Literal["grpo", "rloo", "max_rl"]
Scale = Literal["none", "group", "batch"]


def turn_returns(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """G_t = r_t + gamma * G_{t+1} over the turns of one trajectory.

    A None (infrastructure) reward has no return, and neither has any turn before it: what came
    after it is unknown, and guessing zero would punish the policy for the machine.
    """
    out: list[float | None] = []
    following: float | None = 0.0
    for r in reversed(rewards):
        following = None if r is None or following is None else r + gamma * following
        out.append(following)
    return out[::-1]


def advantages(
    returns: Sequence[float | None],
    keys: Sequence[Hashable],
    *,
    estimator: Estimator = "rloo",
    scale: Scale = "none",
    eps: float = 1e-4,
) -> list[float | None]:
    """One advantage per sample, None where there is no return or no other member to compare with.

    `grpo`: G - mean of the group (DeepSeekMath); `rloo`: G - mean of the others; `max_rl`:
    (G - mean) / mean where the mean is positive. `scale` divides by the standard deviation (n - 1)
    of the group or of the whole batch.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, (g, key) in enumerate(zip(returns, keys, strict=True)):
        if g is not None:
            groups[key].append(i)
    value = {i: g for i, g in enumerate(returns) if g is not None}
    batch_std = _std(list(value.values()))
    out: list[float | None] = [None] * len(returns)
    for members in groups.values():
        n = len(members)
        if n < 2:
            continue
        xs = [value[i] for i in members]
        mean, std = sum(xs) / n, _std(xs)
        for i, x in zip(members, xs, strict=True):
            a = x - mean
            if estimator == "rloo":
                a *= n / (n - 1)
            elif estimator == "max_rl":
                a = a / mean if mean > 0 else 0.0
            if scale == "group":
                a /= std + eps
            elif scale == "batch":
                a /= batch_std + eps
            out[i] = a
    return out


def _std(xs: Sequence[float]) -> float:
    if len(xs) < 2:
        return 0.0
    mean = sum(xs) / len(xs)
    return math.sqrt(sum((x - mean) ** 2 for x in xs) / (len(xs) - 1))
