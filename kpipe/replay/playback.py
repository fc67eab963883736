"""`kpipe replay trajectory ID --run`: a trajectory played again from one of its turns, beside the stored one.

The collector's own code plays it, over a scratch database that holds the turns before that one. Nothing is
written into the run; only answers that a coder was paid for go into the ledger, so that they are paid once.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kpipe.coder import Coder, CoderReply, CoderRequest, open_coder
from kpipe.collect.collector import check_coder
from kpipe.collect.rollout import Services, run_trajectory
from kpipe.collect.verdicts import VerdictWatch
from kpipe.config import Config, from_json
from kpipe.domain.harness import HARNESS, device_kind
from kpipe.domain.problem import Problem
from kpipe.domain.prompt import load_template
from kpipe.domain.verdict import Verdict
from kpipe.errors import UsageError
from kpipe.evaluate.judge import Judge
from kpipe.evaluate.toolchain import find_toolchain
from kpipe.evaluate.worker import Worker
from kpipe.policy import Policy, Suggestion, SuggestRequest, open_policy
from kpipe.policy.checkpoint import locate
from kpipe.store import catalog, ledger, policies, queue, rollouts, runs, stories, workers
from kpipe.store.database import Database
from kpipe.store.records import (
    Group,
    PolicyVersion,
    Run,
    StoredProblem,
    Story,
    SuggestedTurn,
    TokenRecord,
    Trajectory,
    TurnStory,
)

CODERS = ("builtin", "openai")


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays: the checkpoint of each turn (path and version), and the configuration of the coder."""

    policies: list[tuple[Path, int]]
    config: Config


def choose_cast(
    db: Database, run: Run, story: Story, start: int, *, policy: str | None, coder: str | None
) -> Cast:
    """The run's own, unless a checkpoint or a coder is named. Raises UsageError, PolicyError."""
    config = from_json(run.config)
    if coder is not None:
        if coder not in CODERS:
            raise UsageError(f"There is no coder {coder!r}.", f"--coder is one of: {', '.join(CODERS)}.")
        config = config.model_copy(update={"coder": config.coder.model_copy(update={"kind": coder})})
    turns = range(start, config.collect.max_steps_per_episode)
    if not turns:
        raise UsageError(
            f"Turn {start} is after the last of an episode.",
            f"--turn can be 0 to {config.collect.max_steps_per_episode - 1}.",
        )
    if policy is not None:
        path = locate(policy)
        return Cast([(path, 0) for _ in turns], config)
    by_step = {v.step: v for v in db.read(policies.list_, run.id)}
    steps = {t.ordinal: t.policy_step for t in story.turns}
    last = max(steps.values(), default=0)
    return Cast([_present(by_step, steps.get(t, last)) for t in turns], config)


def _present(versions: dict[int, PolicyVersion], step: int) -> tuple[Path, int]:
    if (path := Path(versions[step].path)).is_dir():
        return path, step
    there = [str(s) for s, v in versions.items() if Path(v.path).is_dir()]
    raise UsageError(
        f"The checkpoint of policy {step}, {path}, is gone.",
        f"Name another with --policy; there are those of updates {', '.join(there)}."
        if there
        else "Name another checkpoint with --policy.",
    )


def play(db: Database, run: Run, story: Story, start: int, cast: Cast) -> Story:
    """The trajectory with its turns from `start` played again. Raises KpipeError."""
    find_toolchain()
    with (
        tempfile.TemporaryDirectory(prefix="kpipe-replay-") as folder,
        Database.open(f"sqlite:///{folder}/scratch.db", create=True) as scratch,
    ):
        return asyncio.run(_play(db, scratch, run, story, start, cast))


async def _play(db: Database, scratch: Database, run: Run, story: Story, start: int, cast: Cast) -> Story:
    async def lookup(key: str):  # type: ignore[no-untyped-def]
        return await db.aread(ledger.cached_call, key)

    problem = (await db.aread(catalog.get, story.problem_id)).problem
    stage = await scratch.awrite(_set_up, run, problem, story.turns[:start], cast)
    coder = open_coder(cast.config.coder, lookup)
    try:
        await check_coder(coder, [stage.problem])
        async with _judging(scratch, cast.config) as watch:
            services = Services(
                db=scratch,
                config=cast.config,
                seed=run.seed,
                template=load_template(cast.config.policy.prompt),
                suggester=Voices(cast, stage.versions),
                coder=Keeping(coder, db),
                verdict_of=watch.verdict_of,
                harness=HARNESS,
                device=device_kind(cast.config.evaluate.device),
                draining=lambda: False,
            )
            # The numbers that are drawn depend on the group's and the member's number in the run.
            group = replace(stage.group, ordinal=story.group)
            member = replace(stage.trajectory, member=story.member)
            await run_trajectory(services, group, stage.problem, member)
    finally:
        await coder.close()
    played = await scratch.aread(stories.story, stage.trajectory.id)
    assert played is not None
    return replace(story, turns=(*story.turns[:start], *played.turns[start:]))


class Voices:
    """A Suggester: turn by turn, the checkpoint that the cast names."""

    def __init__(self, cast: Cast, versions: dict[int, int]) -> None:
        self.config, self.versions = cast.config.policy, versions
        self.next: Iterator[tuple[Path, int]] = iter(cast.policies)
        self.policy: Policy | None = None
        self.path: Path | None = None

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        path, step = next(self.next)
        return await asyncio.to_thread(self._suggest, path, step, request), self.versions[step]

    def _suggest(self, path: Path, step: int, request: SuggestRequest) -> Suggestion:
        if self.policy is None:
            self.policy = open_policy(self.config, path, step)
        elif path != self.path:
            self.policy.load(str(path), step)
        self.path = path
        return self.policy.suggest([request])[0]


class Keeping:
    """A coder whose paid answers go into the ledger of the real database."""

    def __init__(self, coder: Coder, db: Database) -> None:
        self.coder, self.db = coder, db

    async def implement(self, request: CoderRequest) -> CoderReply:
        reply = await self.coder.implement(request)
        if reply.call is not None:
            await self.db.awrite(ledger.keep, reply.call)
        return reply

    def supports(self, problem: Problem) -> str | None:
        return self.coder.supports(problem)

    async def check(self) -> None:
        await self.coder.check()

    async def close(self) -> None:
        await self.coder.close()


@contextlib.asynccontextmanager
async def _judging(scratch: Database, config: Config) -> AsyncIterator[VerdictWatch]:
    """A worker of this process on the scratch queue, and who waits for its verdicts."""
    async with Judge(config.evaluate) as judge:
        watch, worker = VerdictWatch(scratch), await Worker.create(scratch, config.evaluate, judge)
        tasks = [asyncio.create_task(work) for work in (worker.run(), watch.run())]
        try:
            yield watch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the scratch database holds; `versions` are policy version ids by step."""

    problem: StoredProblem
    group: Group
    trajectory: Trajectory
    versions: dict[int, int]


def _set_up(conn: Any, run: Run, problem: Problem, turns: Sequence[TurnStory], cast: Cast) -> Stage:
    """A run with one trajectory that has these turns."""
    config = cast.config
    copy = runs.create(conn, run.name, run.config, run.seed, run.code_version)
    steps = {step for _, step in cast.policies} | {t.policy_step for t in turns}
    versions = {step: policies.add(conn, copy.id, step, "", "").id for step in sorted(steps)}
    problem_id, _ = catalog.add(conn, problem)
    device = device_kind(config.evaluate.device)
    group = rollouts.open_group(conn, copy.id, problem_id, device, 1, config.collect.lease_s)
    (trajectory,) = rollouts.trajectories(conn, group.id)
    worker = workers.register(conn, "replay", "", 0, device)
    for told in turns:
        _copy(conn, told, trajectory.id, versions[told.policy_step], problem_id, device, worker)
    return Stage(StoredProblem(problem_id, problem), group, trajectory, versions)


def _copy(
    conn: Any, t: TurnStory, trajectory_id: int, version: int, problem_id: int, device: str, worker: int
) -> None:
    """A settled turn with its verdict; what the policy said as ids is of no use here."""
    said = TokenRecord([], [], [], {}, t.finish_reason)
    new = SuggestedTurn(trajectory_id, t.ordinal, version, t.prompt, "", t.suggestion, said)
    (turn_id,) = rollouts.record_suggestions(conn, [new])
    if t.kernel is not None and isinstance(t.verdict, Verdict) and t.outcome is not None:
        place = {"problem_id": problem_id, "harness": HARNESS, "device": device}
        rollouts.record_kernel(conn, turn_id, None, t.kernel, **place)  # type: ignore[arg-type]
        for job in queue.claim(conn, worker, device, 60.0):
            queue.report(conn, job.id, job.lease, t.verdict)
    results = {"reward": t.reward, "outcome": t.outcome, "fault": t.fault, "kernel": t.kernel}
    rollouts.settle(conn, turn_id, **results, last=False)  # type: ignore[arg-type]
