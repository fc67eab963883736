"""Is what a server answers the policy's own distribution? Asked once, before anything is sampled for a run.

An update divides by the probabilities that the sampler reports. Two things go wrong in silence: log-probabilities of
the raw logits where the temperature was applied to sample (vLLM's default), and numbers that are no log-probabilities
of this distribution. Both show when the same prompt is continued at two temperatures: if p(token) is proportional to
exp(logit / temperature), the gap between two tokens' log-probabilities grows as the temperature falls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from kpipe.policy.line import Line
from kpipe.policy.wire import Answer, Ask, Wire, not_conforming

HOT, COLD = 1.0, 0.25
TIMES = 12
TOP = 5
FLAT = 0.05
"""Gaps smaller than this, in nats at HOT, say nothing."""


async def check_answers(line: Line, wire: Wire, ask: Ask, vocabulary: int) -> None:
    """`ask` holds a prompt with more than one natural continuation. Raises PolicyError."""

    async def once(temperature: float, seed: int, tokens: int, top: int) -> Answer:
        asked = replace(ask, temperature=temperature, seed=seed, max_tokens=tokens, top=top)
        return wire.answer(asked, await line.post(wire.ask(asked), patient=False))

    whole = await once(ask.temperature, 0, ask.max_tokens, 0)
    if not all(0 <= token < vocabulary for token in whole.ids):
        raise not_conforming(wire, "samples tokens that the tokenizer of policy.model does not have")
    hot, cold = [
        first_tokens(await asyncio.gather(*(once(temperature, seed, 1, TOP) for seed in range(TIMES))))
        for temperature in (HOT, COLD)
    ]
    for temperature, seen in ((HOT, hot), (COLD, cold)):
        if (total := sum(map(math.exp, seen.values()))) > 1.02:
            raise not_conforming(
                wire,
                f"gives first tokens a probability of {total:.2f} together at temperature {temperature:g}",
            )
    if temperature_applied(hot, cold) == "no":
        raise not_conforming(wire, "gives log-probabilities from before the temperature")


def first_tokens(answers: list[Answer]) -> dict[int, float]:
    """Log-probabilities of the first token, of those that were sampled and those that were reported beside them."""
    seen: dict[int, float] = {}
    for answer in answers:
        seen |= answer.top
        seen[answer.ids[0]] = answer.logprobs[0]
    return seen


def temperature_applied(
    hot: Mapping[int, float], cold: Mapping[int, float]
) -> Literal["yes", "no", "unknown"]:
    """From log-probabilities of the same position at HOT and COLD."""
    common = sorted(hot.keys() & cold.keys(), key=lambda token: hot[token])
    if len(common) >= 2:
        low, high = common[0], common[-1]
        gap = hot[high] - hot[low]
        if gap > FLAT:
            grown = (cold[high] - cold[low]) / gap
            return "yes" if grown > math.sqrt(HOT / COLD) else "no"
        return "unknown"
    if len(common) == 1 and -1.6 < hot[common[0]] < -0.3:
        # One likely token, and others beside it: at COLD it must have taken over most of their share.
        return "yes" if cold[common[0]] > 0.75 * hot[common[0]] else "no"
    return "unknown"
