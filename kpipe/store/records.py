"""What goes into the store and comes out of it. Plain values: no connection hides in any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Verdict

GroupState = Literal["open", "complete", "failed"]
TrajectoryState = Literal["open", "closed"]
TurnState = Literal["suggested", "evaluating", "settled"]
EvaluationState = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Run:
    id: int
    name: str
    config: dict[str, Any]
    seed: int
    code_version: str


@dataclass(frozen=True, slots=True)
class StoredProblem:
    id: int
    problem: Problem


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """`step` 0 is the base model; `path` is the checkpoint directory, `digest` that of its weights."""

    id: int
    run_id: int
    step: int
    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one problem that are compared with each other. `lease` is its holder's token."""

    id: int
    run_id: int
    ordinal: int
    problem_id: int
    device: str
    size: int
    state: GroupState
    lease: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    id: int
    group_id: int
    member: int
    state: TrajectoryState


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What the policy read and said. Ids are int32, log-probabilities (one per completion token) float32:
    both come back bit for bit. `finish_reason` is 'stop', 'length' or 'prompt_too_long'.
    """

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    sampling: dict[str, Any]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class SuggestedTurn:
    """A turn as it is first stored. `prompt_template` is the digest of the template that made `prompt`."""

    trajectory_id: int
    ordinal: int
    policy_version_id: int
    prompt: str
    prompt_template: str
    suggestion: str
    tokens: TokenRecord


@dataclass(frozen=True, slots=True)
class CoderCall:
    """One paid request and its answer. `key` is the digest of all that determines the answer."""

    key: str
    model: str
    request: str
    reply: str | None
    error: str | None
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn as a resumed trajectory needs it. `evidence` is the log of its verdict.

    A settled turn has either a reward or a fault: 'coder_failed', 'prompt_too_long' or 'infra'.
    """

    id: int
    trajectory_id: int
    ordinal: int
    state: TurnState
    suggestion: str
    finish_reason: str
    kernel: str | None
    evaluation_id: int | None
    outcome: str | None
    speedup: float | None
    evidence: str
    reward: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What one kernel of a suggestion with several came to: `outcome` and `reward`, or a `fault`."""

    outcome: str | None
    reward: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One answer of the coder to a turn's suggestion. Without outcome and fault it waits for its verdict."""

    sample: int
    kernel: str | None
    evaluation_id: int | None
    outcome: str | None
    reward: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """A claimed evaluation. `attempt` is 1 for the first try; `lease` proves that the job is still ours.

    `seeds` are those of an earlier verdict that is replayed.
    """

    id: int
    lease: str
    problem_id: int
    reference: str
    kernel: str
    device: str
    harness: str
    attempt: int
    seeds: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """`verdict` is None while the evaluation waits or runs, and INFRA when it was given up."""

    id: int
    state: EvaluationState
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class JudgedKernel:
    """An evaluation without its texts. `detail` has the seeds of its inputs."""

    id: int
    problem_id: int
    problem: str
    kernel_sha: str
    device: str
    round: int
    state: EvaluationState
    outcome: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    detail: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One settled turn of a complete group, as the trainer reads it."""

    turn_id: int
    trajectory_id: int
    group_id: int
    problem_id: int
    member: int
    turn_ordinal: int
    policy_step: int
    reward: float | None
    tokens: TokenRecord


@dataclass(frozen=True, slots=True)
class TrainedSample:
    """What an update made of a turn: trained with a `weight`, or left out for a `drop_reason`."""

    turn_id: int
    return_: float | None
    advantage: float | None
    weight: float | None
    drop_reason: str | None


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a suggestion that was worth `value` (an advantage or a speedup)."""

    prompt: str
    suggestion: str
    value: float


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A committed update, as its trainer recorded it."""

    step: int
    batch_hash: str
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A settled turn and all that a reward formula asks for. A fault has neither outcome nor reward."""

    id: int
    trajectory_id: int
    group_id: int
    run_id: int
    problem: str
    group_ordinal: int
    member: int
    ordinal: int
    kernel_sha: str | None
    evaluation_id: int | None
    outcome: str | None
    speedup: float | None
    speedup_low: float | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class TurnChange:
    """A settled turn that another formula or a new finding judges in another way."""

    turn: JudgedTurn
    outcome: str
    reward: float


@dataclass(frozen=True, slots=True)
class SampleChange:
    """What the same change does to a sample of an update."""

    run_id: int
    step: int
    turn_id: int
    before: tuple[float | None, float | None]  # return, advantage
    after: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Use:
    """What update `step` of a run made of a turn."""

    run: str
    step: int
    return_: float | None
    advantage: float | None
    weight: float | None
    drop_reason: str | None


@dataclass(frozen=True, slots=True)
class TurnStory:
    """A turn with all that belongs to it. `policy_step` is the version that suggested; `usd` is of the call."""

    id: int
    ordinal: int
    state: TurnState
    policy_step: int
    prompt: str
    suggestion: str
    finish_reason: str
    coder: str | None
    usd: float | None
    coder_error: str | None
    kernel: str | None
    kernel_sha: str | None
    outcome: str | None
    reward: float | None
    fault: str | None
    evaluation_id: int | None
    verdict: Verdict | None
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """A trajectory from its reference to its last turn."""

    id: int
    run: str
    group: int
    member: int
    problem_id: int
    problem: str
    reference: str
    state: TrajectoryState
    turns: tuple[TurnStory, ...]


@dataclass(frozen=True, slots=True)
class BestKernel:
    """The fastest correct kernel of a problem; times in milliseconds, bounds at 95 %."""

    problem: str
    speedup: float
    speedup_low: float
    speedup_high: float
    kernel_sha: str
    time_ms: float
    baseline_ms: float


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory as a benchmark counts it. `speedup` is that of its fastest correct kernel, or None.

    `unjudged` turns ended without a verdict through no fault of policy or coder; `faults` are all without reward.
    """

    level: int
    problem: str
    member: int
    speedup: float | None
    unjudged: int
    faults: int
    turns: int
