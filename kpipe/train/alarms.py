"""What a person should hear about while a run trains: numbers that say that it goes wrong.

Each alarm compares the metrics of an update with fixed bounds or with those of the first updates of its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

EARLY = 3
"""Updates that an alarm about drift compares with."""

LEAST_ENTROPY = 0.1
LEAST_ESS = 0.3
MOST_REPETITION = 0.3
MOST_DRIFT = 2.0

Metrics = Mapping[str, Any]


def alarms(now: Metrics, early: Sequence[Metrics]) -> dict[str, str]:
    """Sentence by name of every alarm of an update; `early` are the first updates, none at the first."""
    found: dict[str, str] = {}
    if now["skipped_steps"]:
        found["gradient_not_finite"] = (
            f"{now['skipped_steps']} optimizer steps were skipped: their gradient was not finite."
            " Lower train.learning_rate or train.max_grad_norm."
        )
    if not now["samples_trained"]:
        return found
    if 0 < now["mismatch_ess"] < LEAST_ESS:
        found["low_ess"] = (
            f"The effective sample size is {now['mismatch_ess']:.0%}: the policy is far from those that sampled."
            " Lower collect.max_off_policy_steps."
        )
    return found | (_drift(now, early) if early else {})


def _drift(now: Metrics, early: Sequence[Metrics]) -> dict[str, str]:
    def before(name: str) -> float:
        return fmean(m.get(name) or 0.0 for m in early)

    found: dict[str, str] = {}
    entropy, length = before("entropy"), before("completion_tokens_mean")
    if now["entropy"] < LEAST_ENTROPY * entropy:
        found["entropy_collapse"] = (
            f"Entropy fell from {entropy:.2f} to {now['entropy']:.2f} nats a token: all suggestions become alike."
            " Raise train.clip_high or train.kl_beta, or lower train.learning_rate."
        )
    if now["repetition_mean"] > max(MOST_REPETITION, 2 * before("repetition_mean")):
        found["repetition"] = (
            f"{now['repetition_mean']:.0%} of what is said is said twice, at first it was"
            f" {before('repetition_mean'):.0%}. Look at `kpipe show turn`; raise train.kl_beta."
        )
    if not length / MOST_DRIFT <= now["completion_tokens_mean"] <= length * MOST_DRIFT:
        found["length_drift"] = (
            f"Suggestions have {now['completion_tokens_mean']:.0f} tokens, at first they had {length:.0f}."
            " Look at `kpipe show turn`; raise train.kl_beta."
        )
    return found
