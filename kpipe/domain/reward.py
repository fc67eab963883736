"""From verdict to reward. The default is the seed's: -1, -0.5, 0.3 + baseline / new."""

from __future__ import annotations

import math

from kpipe.config import RewardConfig
from kpipe.domain.verdict import Outcome


def reward(
    outcome: Outcome, speedup: float | None, speedup_low: float | None, cfg: RewardConfig
) -> float | None:
    """Reward of one turn, or None when the machine and not the kernel is to blame.

    `speedup` and `speedup_low` (lower bound of the 95 % interval) are needed for CORRECT only.
    """
    if outcome is Outcome.INFRA:
        return None
    if outcome is Outcome.UNCHANGED:
        return cfg.unchanged
    if not outcome.compiled:
        return cfg.not_compiled
    if outcome is not Outcome.CORRECT:
        return cfg.incorrect
    ratio = speedup_low if cfg.use_lower_bound and speedup_low is not None else speedup
    if ratio is None or not math.isfinite(ratio) or ratio <= 0:
        raise ValueError(f"a correct kernel needs a positive speedup, got {ratio}")
    if cfg.speedup_cap is not None:
        ratio = min(ratio, cfg.speedup_cap)
    if cfg.speedup_floor is not None and ratio < cfg.speedup_floor:
        return cfg.correct
    return cfg.correct + cfg.speedup_weight * (math.log(ratio) if cfg.transform == "log" else ratio)
