"""A run in a database, and the short words with which tests move it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Finding, Outcome, Verdict
from kpipe.store import catalog, policies, queue, rollouts, runs, training, workers
from kpipe.store.database import Database
from kpipe.store.records import (
    CoderCall,
    EvaluationJob,
    Group,
    PolicyVersion,
    Run,
    Sample,
    SuggestedTurn,
    TokenRecord,
    TrainedSample,
    Trajectory,
)

DEVICE, HARNESS = "cpu", "1"
LEASE_S = 600.0
EXPIRED = -1.0
TOKENS = TokenRecord([1, 2, 3], [4, 5], [-0.5, -1.25], {"temperature": 1.0}, "stop")
GOOD = Verdict(
    Outcome.CORRECT,
    time_ms=1.0,
    baseline_ms=2.0,
    speedup=2.0,
    speedup_low=1.9,
    speedup_high=2.1,
    build_s=0.5,
    run_s=0.25,
    detail={"pairs": 12},
    log="all right",
    findings=(Finding("slow-loop", "note", "a loop", 3),),
)


def call(key: str = "key", *, reply: str | None = "a reply", usd: float = 0.5) -> CoderCall:
    error = None if reply is not None else "overloaded"
    return CoderCall(key, "gpt", "a request", reply, error, 10, 20, usd, 1.5, 1)


@dataclass
class World:
    db: Database
    run: Run
    problem_id: int
    base: PolicyVersion
    worker: int

    @classmethod
    def make(cls, db: Database, name: str = "first") -> World:
        run = db.write(runs.create, name, {"train": {"gamma": 0.4}}, 7, "0.1.0")
        problem_id, _ = db.write(catalog.add, Problem("suite", 1, "square", "train", "class Model: ..."))
        base = db.write(policies.add, run.id, 0, "/checkpoints/0", "digest-0")
        worker = db.write(workers.register, "evaluate", "host", 1, DEVICE)
        return cls(db, run, problem_id, base, worker)

    def open_group(self, size: int = 2, lease_s: float = LEASE_S) -> tuple[Group, list[Trajectory]]:
        group = self.db.write(rollouts.open_group, self.run.id, self.problem_id, DEVICE, size, lease_s)
        return group, self.db.read(rollouts.trajectories, group.id)

    def suggestion(
        self, trajectory: Trajectory, ordinal: int = 0, policy: PolicyVersion | None = None
    ) -> SuggestedTurn:
        prompt = f"prompt {trajectory.id}/{ordinal}"
        version = (policy or self.base).id
        return SuggestedTurn(trajectory.id, ordinal, version, prompt, "template", "unroll the loop", TOKENS)

    def suggest(self, trajectory: Trajectory, ordinal: int = 0, policy: PolicyVersion | None = None) -> int:
        return self.db.write(rollouts.record_suggestions, [self.suggestion(trajectory, ordinal, policy)])[0]

    def implement(self, turn: int, kernel: str, coder_call: CoderCall | None = None) -> int:
        return self.db.write(
            rollouts.record_kernel,
            turn,
            coder_call,
            kernel,
            problem_id=self.problem_id,
            harness=HARNESS,
            device=DEVICE,
        )

    def queued(self, n: int) -> list[int]:
        """`n` evaluations that wait, of turns of one open group."""
        _, members = self.open_group(n)
        return [self.implement(self.suggest(t), f"kernel {t.id}") for t in members]

    def claim(self, limit: int = 1, lease_s: float = LEASE_S) -> list[EvaluationJob]:
        return self.db.write(queue.claim, self.worker, DEVICE, lease_s, limit)

    def settle(self, turn: int, reward: float | None, *, last: bool, outcome: str = "correct") -> None:
        faulty = reward is None
        self.db.write(
            rollouts.settle,
            turn,
            reward=reward,
            outcome=None if faulty else outcome,
            fault="infra" if faulty else None,
            last=last,
        )

    def play(
        self, trajectory: Trajectory, rewards: Sequence[float | None], policy: PolicyVersion | None = None
    ) -> list[int]:
        """All turns of a trajectory, each evaluated as GOOD with a kernel of its own."""
        played = []
        for ordinal, reward in enumerate(rewards):
            turn = self.suggest(trajectory, ordinal, policy)
            self.implement(turn, f"kernel of turn {turn}", call(f"key {turn}"))
            (job,) = self.claim()
            self.db.write(queue.report, job.id, job.lease, GOOD)
            self.settle(turn, reward, last=ordinal == len(rewards) - 1)
            played.append(turn)
        return played

    def complete_group(
        self,
        rewards: Sequence[Sequence[float | None]] = ((1.0, 2.0), (0.5, 0.0)),
        policy: PolicyVersion | None = None,
    ) -> Group:
        """A finished group, one row of rewards per trajectory."""
        group, members = self.open_group(len(rewards))
        for member, row in zip(members, rewards, strict=True):
            self.play(member, row, policy)
        return group

    def take(self, step: int, max_off_policy_steps: int = 1, limit: int = 10) -> list[list[Sample]]:
        return self.db.read(training.take, self.run.id, step, max_off_policy_steps, limit)

    def commit(
        self,
        step: int,
        groups: Sequence[Sequence[Sample]],
        stale: Sequence[int] = (),
        drop: Mapping[int, str] = MappingProxyType({}),
        path: str | None = None,
        rescoring: int | None = None,
        **metrics: float,
    ) -> PolicyVersion:
        """`drop` gives the reason for turns that the update did not learn from."""
        came_in = self.db.read(policies.get, self.run.id, step - 1)
        assert came_in is not None
        samples = [
            TrainedSample(s.turn_id, s.reward, None, None, drop[s.turn_id])
            if s.turn_id in drop
            else TrainedSample(s.turn_id, s.reward, 0.5, 1.0, None)
            for group in groups
            for s in group
        ]
        checkpoint = (path or f"/checkpoints/{step}", f"digest-{step}")
        return self.db.write(
            training.commit_step,
            self.run.id,
            step,
            came_in.id,
            checkpoint,
            f"hash-{step}",
            {"loss": 0.25 * step, **metrics},
            samples,
            stale,
            rescoring=rescoring,
        )
