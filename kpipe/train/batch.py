"""From complete groups to what an update learns from: returns, advantages, and why a sample is left out.

A sample is one turn. Drop reasons: `infra` (no return: the reward of this or a later turn of the
trajectory is unknown, or nothing was said), `singleton` (nobody to compare with), `zero_spread` (all
returns that it is compared with are the same), `truncated` (only with `drop_truncated`). By default a
suggestion cut at the length limit is not dropped: the coder read what there was of it, so its reward is
real and rambling has to be able to cost. Where it is dropped, the others are still compared with it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kpipe.config import TrainConfig
from kpipe.domain.advantage import advantages, turn_returns
from kpipe.store.records import Sample


@dataclass(frozen=True, slots=True)
class Scored:
    """A sample and what the batch says about it. `advantage` is set exactly when `drop_reason` is not."""

    sample: Sample
    return_: float | None
    advantage: float | None
    drop_reason: str | None


def score(groups: Sequence[Sequence[Sample]], cfg: TrainConfig) -> list[Scored]:
    """One entry per sample, group by group, each ordered by member and turn."""
    samples = [s for group in groups for s in sorted(group, key=lambda s: (s.member, s.turn_ordinal))]
    returns = _returns(samples, cfg.gamma)
    keys = [_key(s, cfg) for s in samples]
    reasons = _drop_reasons(returns, keys, cfg.min_group_spread)
    if cfg.drop_truncated:
        reasons = [r or _truncated(s) for s, r in zip(samples, reasons, strict=True)]
    values = advantages(returns, keys, estimator=cfg.advantage, scale=cfg.scale_rewards)
    return [
        Scored(sample, g, None if reason else a, reason)
        for sample, g, a, reason in zip(samples, returns, values, reasons, strict=True)
    ]


def batch_hash(samples: Iterable[Sample]) -> str:
    """Digest of everything that the policy saw, said and earned in this batch, in this order."""
    digest = hashlib.sha256()
    for s in samples:
        digest.update(f"{s.turn_id} {s.policy_step} {s.reward!r} ".encode())
        for numbers in (
            array("i", s.tokens.prompt),
            array("i", s.tokens.completion),
            array("f", s.tokens.logprobs),
        ):
            digest.update(len(numbers).to_bytes(4, "little") + numbers.tobytes())
    return digest.hexdigest()


def _returns(samples: Sequence[Sample], gamma: float) -> list[float | None]:
    """Discounted return of each sample; None as well where there are no tokens to learn from."""
    trajectories: dict[int, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        trajectories[sample.trajectory_id].append(i)
    out: list[float | None] = [None] * len(samples)
    for turns in trajectories.values():
        for i, g in zip(turns, turn_returns([samples[i].reward for i in turns], gamma), strict=True):
            out[i] = g if samples[i].tokens.completion else None
    return out


def _key(sample: Sample, cfg: TrainConfig) -> Hashable:
    """What a sample is compared with: its group, or the same turn of its group."""
    return (sample.group_id, sample.turn_ordinal) if cfg.group_by == "problem_turn" else sample.group_id


def _truncated(sample: Sample) -> str | None:
    return "truncated" if sample.tokens.finish_reason == "length" else None


def _drop_reasons(
    returns: Sequence[float | None], keys: Sequence[Hashable], min_spread: float
) -> list[str | None]:
    compared: dict[Hashable, list[float]] = defaultdict(list)
    for g, key in zip(returns, keys, strict=True):
        if g is not None:
            compared[key].append(g)

    def reason(g: float | None, key: Hashable) -> str | None:
        if g is None:
            return "infra"
        others = compared[key]
        if len(others) < 2:
            return "singleton"
        return "zero_spread" if max(others) - min(others) <= min_spread else None

    return [reason(g, key) for g, key in zip(returns, keys, strict=True)]
