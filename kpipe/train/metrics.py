"""What is recorded of every update beside its losses: the batch, in plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, pstdev, quantiles
from typing import Any

from kpipe.domain.stats import geometric_mean
from kpipe.domain.verdict import Outcome
from kpipe.store.records import StoredTurn
from kpipe.train.batch import Scored

FAST = 1.0
"""A kernel counts for `fast_1` when its speedup is greater than this."""

PHRASE = 4
"""Tokens that count as said twice when they come again in the same order."""


def batch_metrics(scored: Sequence[Scored], turns: Sequence[StoredTurn], trainer_step: int) -> dict[str, Any]:
    """Rewards, drops, staleness and lengths of the samples; outcomes of their `turns`."""
    return {
        **_rewards(scored),
        **_groups(scored),
        **_staleness(scored, trainer_step),
        **_lengths(scored),
        **_outcomes(turns),
    }


def _rewards(scored: Sequence[Scored]) -> dict[str, Any]:
    by_turn: dict[int, list[float]] = defaultdict(list)
    for s in scored:
        if s.sample.reward is not None:
            by_turn[s.sample.turn_ordinal].append(s.sample.reward)
    rewards = [r for rs in by_turn.values() for r in rs]
    low, high = _tails(rewards)
    return {
        "reward_mean": fmean(rewards) if rewards else None,
        "reward_std": pstdev(rewards) if rewards else None,
        "reward_p10": low,
        "reward_p90": high,
        "reward_by_turn": [fmean(by_turn[t]) for t in sorted(by_turn)],
    }


def _tails(xs: Sequence[float]) -> tuple[float | None, float | None]:
    """The first and the last decile."""
    if len(xs) < 2:
        return (xs[0], xs[0]) if xs else (None, None)
    cuts = quantiles(xs, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def _groups(scored: Sequence[Scored]) -> dict[str, Any]:
    learned = {s.sample.group_id for s in scored if s.drop_reason is None}
    groups = {s.sample.group_id for s in scored}
    return {
        "groups": len(groups),
        "groups_without_signal": len(groups - learned),
        "samples": len(scored),
        "samples_trained": sum(s.drop_reason is None for s in scored),
        "dropped": dict(sorted(Counter(s.drop_reason for s in scored if s.drop_reason).items())),
    }


def _staleness(scored: Sequence[Scored], trainer_step: int) -> dict[str, Any]:
    ages = [trainer_step - s.sample.policy_step for s in scored]
    return {"staleness_mean": fmean(ages), "staleness_max": max(ages)}


def _lengths(scored: Sequence[Scored]) -> dict[str, Any]:
    said = [len(s.sample.tokens.completion) for s in scored]
    return {
        "prompt_tokens_mean": fmean(len(s.sample.tokens.prompt) for s in scored),
        "completion_tokens_mean": fmean(said),
        "completion_tokens_max": max(said),
        "truncated_fraction": fmean(s.sample.tokens.finish_reason == "length" for s in scored),
        "repetition_mean": fmean(repetition(s.sample.tokens.completion) for s in scored),
    }


def repetition(tokens: Sequence[int]) -> float:
    """Share of the runs of PHRASE tokens that were there before, 0 to 1."""
    runs = [tuple(tokens[i : i + PHRASE]) for i in range(len(tokens) - PHRASE + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _outcomes(turns: Sequence[StoredTurn]) -> dict[str, Any]:
    """Shares of the turns that were judged. A trajectory without a correct kernel has best speedup 0."""
    judged = [(Outcome(t.outcome), t.speedup or 0.0) for t in turns if t.outcome not in (None, Outcome.INFRA)]
    speedups = [speedup for outcome, speedup in judged if outcome is Outcome.CORRECT and speedup > 0]
    best: dict[int, float] = defaultdict(float)
    for t in turns:
        correct = t.outcome == Outcome.CORRECT
        best[t.trajectory_id] = max(best[t.trajectory_id], (t.speedup or 0.0) if correct else 0.0)
    n = max(1, len(judged))
    return {
        "compiled_fraction": sum(outcome.compiled for outcome, _ in judged) / n,
        "correct_fraction": sum(outcome is Outcome.CORRECT for outcome, _ in judged) / n,
        "fast_1_fraction": sum(speedup > FAST for speedup in speedups) / n,
        "speedup_geomean": geometric_mean(speedups) if speedups else None,
        "best_speedup_mean": fmean(best.values()) if best else None,
    }
