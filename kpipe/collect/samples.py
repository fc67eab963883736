"""Several kernels for one suggestion: which of them is its result, and what it earns.

A coder that fails at random and a suggestion that is bad look the same in one kernel, and not in several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from kpipe.coder.base import CoderRequest
from kpipe.domain.identity import same_as_reference, same_code
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome
from kpipe.store import samples
from kpipe.store.records import SampleResult, StoredProblem, StoredSample, StoredTurn

if TYPE_CHECKING:
    from kpipe.collect.rollout import Position, Services


@dataclass(frozen=True, slots=True)
class Judged:
    """A sample with its result. `speedup` and `evidence` are those of its verdict."""

    result: SampleResult
    kernel: str | None = None
    evaluation_id: int | None = None
    speedup: float | None = None
    evidence: str = ""


def choose(results: Sequence[SampleResult]) -> int:
    """Place of the sample with the highest reward, the first one of equals; 0 when none has any."""
    earned = [i for i, r in enumerate(results) if r.reward is not None]
    return max(earned, key=lambda i: (results[i].reward or 0.0, -i), default=0)


def score(results: Sequence[SampleResult], how: str) -> float | None:
    """The suggestion's reward: that of the best sample, or the mean of those that have one; None when none has."""
    earned = [r.reward for r in results if r.reward is not None]
    if not earned:
        return None
    return max(earned) if how == "best" else fmean(earned)


async def implement_all(
    s: Services, stored: StoredProblem, at: Position, turn: StoredTurn, *, last: bool
) -> StoredTurn:
    """All samples at once, each stored as soon as it is answered; then the turn is settled.

    What the store knows already is not asked for again.
    """
    known = {x.sample: x for x in await s.db.aread(samples.of_turn, turn.id)}
    count = s.config.coder.samples
    tasks = [_sample(s, stored, at, turn, i, known.get(i)) for i in range(count)]
    # Not to lose a paid answer, every sample is stored before the first failure goes on.
    done = await asyncio.gather(*tasks, return_exceptions=True)
    judged = [_or_raise(each) for each in done]
    results = [j.result for j in judged]
    chosen, earned = choose(results), score(results, s.config.coder.score)
    await s.db.awrite(samples.settle_all, turn.id, results, chosen, earned, last=last)
    best = judged[chosen]
    return replace(
        turn,
        state="settled",
        kernel=best.kernel,
        evaluation_id=best.evaluation_id,
        outcome=best.result.outcome,
        speedup=best.speedup,
        evidence=best.evidence,
        reward=earned,
        fault=best.result.fault,
    )


async def _sample(
    s: Services,
    stored: StoredProblem,
    at: Position,
    turn: StoredTurn,
    number: int,
    known: StoredSample | None,
) -> Judged:
    if known is None:
        known = await _ask(s, stored, at, turn, number)
    if known.evaluation_id is None:
        return Judged(SampleResult(known.outcome, known.reward, known.fault), known.kernel)
    verdict = await s.verdict_of(known.evaluation_id)
    if verdict.outcome is Outcome.INFRA:
        return Judged(SampleResult(None, None, "infra"), known.kernel, known.evaluation_id)
    earned = reward(verdict.outcome, verdict.speedup, verdict.speedup_low, s.config.reward)
    result = SampleResult(verdict.outcome.value, earned, None)
    return Judged(result, known.kernel, known.evaluation_id, verdict.speedup, verdict.log)


async def _ask(
    s: Services, stored: StoredProblem, at: Position, turn: StoredTurn, number: int
) -> StoredSample:
    """Let the coder write one kernel, store it and queue it unless its result is known at once."""
    reply = await s.coder.implement(
        CoderRequest(stored.problem, at.state.kernel_b, turn.suggestion, at.b_outcome, at.b_evidence, number)
    )
    result = None
    if reply.kernel is None:
        result = SampleResult(None, None, "coder_failed")
    elif same_code(reply.kernel, at.state.kernel_b) or same_as_reference(reply.kernel, stored.problem.source):
        earned = reward(Outcome.UNCHANGED, None, None, s.config.reward)
        result = SampleResult(Outcome.UNCHANGED.value, earned, None)
    job = await s.db.awrite(
        samples.record,
        turn.id,
        number,
        reply.call,
        reply.kernel,
        result,
        problem_id=stored.id,
        harness=s.harness,
        device=s.device,
    )
    known = result or SampleResult(None, None, None)
    return StoredSample(number, reply.kernel, job, known.outcome, known.reward, known.fault)


def _or_raise(outcome: Judged | BaseException) -> Judged:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
