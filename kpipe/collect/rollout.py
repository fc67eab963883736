"""One trajectory: the seed's episode, turn by turn, each step stored before the next one costs anything.

    A = B = reference
    repeat: suggestion = policy(A, suggestion, B);  C = coder(B, suggestion);  verdict = evaluator(C);  A, B = B, C

A turn that the store already knows is continued where it stopped, so a killed collector loses nothing
and pays for nothing twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from kpipe.coder.base import Coder, CoderRequest
from kpipe.collect.draining import Draining
from kpipe.collect.samples import implement_all
from kpipe.config import Config
from kpipe.domain.identity import same_as_reference, same_code
from kpipe.domain.problem import Problem
from kpipe.domain.prompt import PromptTemplate, State, abridged, describe, render_prompt, shorter_prompts
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.policy.base import Suggestion, SuggestRequest
from kpipe.store import rollouts
from kpipe.store.database import Database
from kpipe.store.records import (
    CoderCall,
    Group,
    StoredProblem,
    StoredTurn,
    SuggestedTurn,
    TokenRecord,
    Trajectory,
)
from kpipe.store.sql import clean

PROMPT_TOO_LONG = "prompt_too_long"


class Suggester(Protocol):
    """Batches the requests of all trajectories."""

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        """The suggestion and the id of the policy version that made it."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every trajectory of a collector shares."""

    db: Database
    config: Config
    seed: int
    template: PromptTemplate
    suggester: Suggester
    coder: Coder
    verdict_of: Callable[[int], Awaitable[Verdict]]
    harness: str
    device: str
    draining: Callable[[], bool]
    tally: Counter[str] = field(default_factory=Counter)
    """Prompts that were trimmed or too long, since the collector started."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state shown to the policy, and the last real verdict on kernel B, which the coder is shown."""

    state: State
    b_outcome: Outcome | None = None
    b_evidence: str = ""


def start(problem: Problem, device: str = "cpu") -> Position:
    return Position(State(problem.name, problem.source, problem.source, problem.source, device=device))


def advance(at: Position, turn: StoredTurn) -> Position:
    """The position after a settled turn. A turn without a kernel (a fault) leaves it where it was."""
    if turn.kernel is None or turn.outcome is None:
        return at
    outcome, before = Outcome(turn.outcome), at.state
    state = replace(
        before,
        kernel_a=before.kernel_b,
        kernel_b=turn.kernel,
        suggestion=turn.suggestion,
        outcome=outcome,
        speedup=turn.speedup,
        evidence=turn.evidence,
    )
    if before.suggestion:
        tried = f"{abridged(before.suggestion, 200)} -> {describe(before.outcome, before.speedup)}"
        state = replace(state, history=(*before.history, tried))
    if outcome is Outcome.CORRECT and (turn.speedup or 0.0) > (before.best_speedup or 0.0):
        state = replace(state, best_kernel=turn.kernel, best_speedup=turn.speedup)
    if outcome is Outcome.UNCHANGED:
        return Position(state, at.b_outcome, at.b_evidence)
    return Position(state, outcome, turn.evidence)


def turn_seed(run_seed: int, group: int, member: int, ordinal: int) -> int:
    """The same turn of the same run draws the same numbers, whenever and wherever it is sampled."""
    digest = hashlib.sha256(f"{run_seed}/{group}/{member}/{ordinal}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


async def run_trajectory(s: Services, group: Group, stored: StoredProblem, trajectory: Trajectory) -> None:
    """Play or resume one trajectory to its end. Raises Draining when the collector stops."""
    at = start(stored.problem, s.device)
    known = await s.db.aread(rollouts.turns, trajectory.id)
    turns = s.config.collect.max_steps_per_episode
    for ordinal in range(turns):
        if s.draining():
            raise Draining
        turn = known[ordinal] if ordinal < len(known) else await _suggest(s, group, trajectory, at, ordinal)
        last = ordinal == turns - 1
        if turn.state == "suggested":
            turn = await _implement(s, stored, at, turn, last=last)
        if turn.state == "evaluating":
            turn = await _await_verdict(s, turn, last=last)
        if turn.fault == PROMPT_TOO_LONG:
            return
        at = advance(at, turn)


async def _suggest(
    s: Services, group: Group, trajectory: Trajectory, at: Position, ordinal: int
) -> StoredTurn:
    prompt = render_prompt(s.template, at.state)
    seed = turn_seed(s.seed, group.ordinal, trajectory.member, ordinal)
    request = SuggestRequest(prompt, seed, shorter_prompts(s.template, at.state))
    said, version_id = await s.suggester.suggest(request)
    if said.prompt:
        prompt = said.prompt
        s.tally["prompts_trimmed"] += 1
    s.tally["prompts_too_long"] += said.finish_reason == PROMPT_TOO_LONG
    tokens = TokenRecord(
        list(said.prompt_ids),
        list(said.completion_ids),
        list(said.logprobs),
        dict(said.sampling),
        said.finish_reason,
    )
    # As it will be read by whoever resumes: the coder must be asked the same, byte for byte.
    text = clean(said.text)
    new = SuggestedTurn(trajectory.id, ordinal, version_id, prompt, s.template.sha, text, tokens)
    (turn_id,) = await s.db.awrite(rollouts.record_suggestions, [new])
    return StoredTurn(
        id=turn_id,
        trajectory_id=trajectory.id,
        ordinal=ordinal,
        state="suggested",
        suggestion=text,
        finish_reason=said.finish_reason,
        kernel=None,
        evaluation_id=None,
        outcome=None,
        speedup=None,
        evidence="",
        reward=None,
        fault=None,
    )


async def _implement(
    s: Services, stored: StoredProblem, at: Position, turn: StoredTurn, *, last: bool
) -> StoredTurn:
    """Let the coder write the kernel, and queue it. A turn without a kernel, or without a new one, ends here."""
    if turn.finish_reason == PROMPT_TOO_LONG:
        return await _settle(s, turn, last=True, fault=PROMPT_TOO_LONG)
    if s.config.coder.samples > 1:
        return await implement_all(s, stored, at, turn, last=last)
    reply = await s.coder.implement(
        CoderRequest(stored.problem, at.state.kernel_b, turn.suggestion, at.b_outcome, at.b_evidence)
    )
    if reply.kernel is None:
        return await _settle(s, turn, last=last, fault="coder_failed", call=reply.call)
    kernel = clean(reply.kernel)
    turn = replace(turn, kernel=kernel)
    if same_code(kernel, at.state.kernel_b) or same_as_reference(kernel, stored.problem.source):
        return await _settle(s, turn, last=last, outcome=Outcome.UNCHANGED, call=reply.call)
    evaluation = await s.db.awrite(
        rollouts.record_kernel,
        turn.id,
        reply.call,
        kernel,
        problem_id=stored.id,
        harness=s.harness,
        device=s.device,
    )
    return replace(turn, state="evaluating", evaluation_id=evaluation)


async def _await_verdict(s: Services, turn: StoredTurn, *, last: bool) -> StoredTurn:
    if turn.evaluation_id is None:
        raise AssertionError(f"turn {turn.id} waits for no evaluation")
    verdict = await s.verdict_of(turn.evaluation_id)
    if verdict.outcome is Outcome.INFRA:
        return await _settle(s, turn, last=last, fault="infra")
    turn = replace(turn, speedup=verdict.speedup, evidence=verdict.log)
    return await _settle(s, turn, last=last, outcome=verdict.outcome, verdict=verdict)


async def _settle(
    s: Services,
    turn: StoredTurn,
    *,
    last: bool,
    outcome: Outcome | None = None,
    verdict: Verdict | None = None,
    fault: str | None = None,
    call: CoderCall | None = None,
) -> StoredTurn:
    """Give the turn its reward (None for a fault); the last turn closes trajectory and group with it."""
    earned = None
    if outcome is not None:
        speedup, low = (verdict.speedup, verdict.speedup_low) if verdict else (None, None)
        earned = reward(outcome, speedup, low, s.config.reward)
    await s.db.awrite(
        rollouts.settle,
        turn.id,
        reward=earned,
        outcome=outcome.value if outcome else None,
        fault=fault,
        kernel=turn.kernel,
        call=call,
        last=last,
    )
    return replace(
        turn, state="settled", outcome=outcome.value if outcome else None, fault=fault, reward=earned
    )
