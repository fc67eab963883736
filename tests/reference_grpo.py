"""The update in plain Python: one token, one number at a time, after the papers, not after kpipe.

Slow and without a tensor anywhere, so that it shares no mistake with `kpipe.train`. A batch is a list of
turns; a turn is its advantage and, per token, four log-probabilities (see `Token`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple


class Token(NamedTuple):
    """Log-probabilities under the current, the proximal, the sampling and the reference policy."""

    now: float
    proximal: float
    sampled: float
    reference: float


@dataclass
class Turn:
    advantage: float
    tokens: list[Token]


@dataclass
class Options:
    """Names and meanings are those of the configuration's train section."""

    policy_loss: str = "ppo_clip"
    importance_sampling_level: str = "token"
    off_policy_correction: str = "token_truncate"
    correction_cap: float = 2.0
    correction_floor: float | None = None
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    kl_beta: float = 0.0
    kl_estimator: str = "k3"
    loss_aggregation: str = "token_mean"
    max_tokens: int = 1


# ---- returns and advantages --------------------------------------------------------------------
def discounted(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """The sum of what followed, each turn later counting gamma times less; None as soon as one is unknown."""
    found: list[float | None] = []
    for t in range(len(rewards)):
        later = rewards[t:]
        known = [r for r in later if r is not None]
        found.append(sum(gamma**k * r for k, r in enumerate(known)) if len(known) == len(later) else None)
    return found


def advantage_of(
    i: int, returns: Sequence[float | None], keys: Sequence[object], estimator: str, scale: str
) -> float | None:
    """Of sample `i` alone, from all returns; samples with the same key are compared with one another."""
    mine = returns[i]
    if mine is None:
        return None
    group = [g for g, key in zip(returns, keys, strict=True) if g is not None and key == keys[i]]
    others = [
        g
        for j, (g, key) in enumerate(zip(returns, keys, strict=True))
        if j != i and g is not None and key == keys[i]
    ]
    if not others:
        return None
    if estimator == "rloo":
        value = mine - fmean(others)
    elif estimator == "max_rl":
        value = (mine - fmean(group)) / fmean(group) if fmean(group) > 0 else 0.0
    else:
        value = mine - fmean(group)
    spread = {"none": None, "group": group, "batch": [g for g in returns if g is not None]}[scale]
    return value if spread is None else value / (stdev(spread) + 1e-4)


# ---- the loss ----------------------------------------------------------------------------------
def weight_of(turn: Turn, t: int, o: Options) -> float:
    """How much token `t` counts because another policy sampled it."""
    ratios = [math.exp(x.proximal - x.sampled) for x in turn.tokens]
    floor = o.correction_floor or 1 / o.correction_cap

    def allowed(ratio: float) -> bool:
        return floor <= ratio <= o.correction_cap

    match o.off_policy_correction:
        case "token_truncate":
            return min(ratios[t], o.correction_cap)
        case "token_mask":
            return ratios[t] if allowed(ratios[t]) else 0.0
        case "sequence_truncate":
            return min(math.prod(ratios), o.correction_cap)
        case "sequence_geo_mask":
            return 1.0 if allowed(math.prod(ratios) ** (1 / len(ratios))) else 0.0
    return 1.0


def gain_of(turn: Turn, t: int, frozen: Sequence[Token], o: Options) -> float:
    """What is maximized for token `t`. `frozen` is the turn where constants are taken from.

    For a value that is the turn itself; for a slope it stays while one log-probability moves.
    """
    a, token = turn.advantage, turn.tokens[t]
    ratio = math.exp(token.now - token.proximal)
    if o.importance_sampling_level == "sequence":
        mean = fmean(x.now - x.proximal for x in frozen)
        ratio = math.exp(token.now - frozen[t].now + mean)
    low, high = 1 - o.clip_low, 1 + o.clip_high
    if o.policy_loss == "cispo":
        held = math.exp(frozen[t].now - frozen[t].proximal)
        if o.importance_sampling_level == "sequence":
            held = math.exp(fmean(x.now - x.proximal for x in frozen))
        return min(held, high) * a * token.now
    if o.policy_loss == "dppo_tv":
        moved = math.exp(token.now) - math.exp(token.proximal)
        too_far = moved > o.clip_high if a > 0 else moved < -o.clip_low
        return 0.0 if too_far else ratio * a
    gain = min(ratio * a, min(max(ratio, low), high) * a)
    if o.dual_clip is not None and a < 0:
        gain = max(gain, o.dual_clip * a)
    return gain


def kl_of(token: Token, estimator: str) -> float:
    d = token.reference - token.now
    return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[estimator]


def loss(batch: Sequence[Turn], o: Options, frozen: Sequence[Sequence[Token]] | None = None) -> float:
    """The number that an optimizer step over `batch` minimizes."""
    constants = frozen if frozen is not None else [turn.tokens for turn in batch]
    per_turn = [
        [
            -weight_of(turn, t, o) * gain_of(turn, t, constant, o) + o.kl_beta * kl_of(token, o.kl_estimator)
            for t, token in enumerate(turn.tokens)
        ]
        for turn, constant in zip(batch, constants, strict=True)
    ]
    return _AGGREGATIONS[o.loss_aggregation](per_turn, o.max_tokens)


def slope(batch: Sequence[Turn], i: int, t: int, o: Options, step: float = 1e-6) -> float:
    """Derivative of the loss by the current log-probability of token `t` of turn `i`, from two values."""
    frozen = [list(turn.tokens) for turn in batch]
    values = []
    for change in (-step, step):
        moved = [Turn(turn.advantage, list(turn.tokens)) for turn in batch]
        token = moved[i].tokens[t]
        moved[i].tokens[t] = token._replace(now=token.now + change)
        values.append(loss(moved, o, frozen))
    return (values[1] - values[0]) / (2 * step)


_AGGREGATIONS: dict[str, Callable[[list[list[float]], int], float]] = {
    "token_mean": lambda turns, _: sum(map(sum, turns)) / sum(map(len, turns)),
    "seq_mean_token_mean": lambda turns, _: fmean(fmean(tokens) for tokens in turns),
    "seq_mean_token_sum_norm": lambda turns, longest: fmean(sum(tokens) / longest for tokens in turns),
}
