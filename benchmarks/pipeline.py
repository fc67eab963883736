"""How close the collector comes to its bottleneck, with the latencies of stages that are only waited for.

    python benchmarks/pipeline.py --json results.json       # 2.5 min pipelined, 20 min sequential
    python benchmarks/pipeline.py --no-sequential

The collector, its trajectories, the batches, the capacity rule and the SQLite store are the real ones. The coder
takes 3 s, a build 1 s on two slots, a run 0.3 s on one slot, a batch of suggestions 0.2 s: these only sleep. The
lower bound is the time that the busiest stage needs for its own work if it never waits: 256 builds on two slots.
The sequential loop plays the same trajectories with the same latencies one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpipe.coder import CoderReply, CoderRequest
from kpipe.collect.batcher import Batcher
from kpipe.collect.collector import Collector
from kpipe.collect.rollout import run_trajectory
from kpipe.config import Config
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.policy import Suggestion, SuggestRequest
from kpipe.store import catalog, policies, queue, rollouts, runs, workers
from kpipe.store.database import Database
from kpipe.store.records import EvaluationJob, PolicyVersion, Run, StoredProblem

GROUPS, SIZE, TURNS = 8, 8, 4
BUILD_SLOTS = 2
POLL_S = 0.02


@dataclass(frozen=True)
class Latencies:
    """Seconds."""

    coder: float = 3.0
    build: float = 1.0
    run: float = 0.3
    policy: float = 0.2

    def bound(self, turns: int) -> float:
        """Seconds that the busiest stage works; coder and policy take many at once."""
        return max(turns * self.build / BUILD_SLOTS, turns * self.run)


@dataclass
class SlowPolicy:
    """A batch of any size takes as long as one."""

    seconds: float
    version: int = 0
    batches: list[int] = field(default_factory=list)

    def suggest(self, requests: Sequence[SuggestRequest]) -> list[Suggestion]:
        time.sleep(self.seconds)
        self.batches.append(len(requests))
        return [Suggestion("fuse", [1], [2], [-0.5], "stop", {}) for _ in requests]

    def load(self, path: str, version: int) -> None:
        self.version = version


@dataclass
class SlowCoder:
    seconds: float
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def implement(self, request: CoderRequest) -> CoderReply:
        await asyncio.sleep(self.seconds)
        return CoderReply(f"kernel = {next(self.numbers)}")

    def supports(self, problem: Problem) -> str | None:
        return None

    async def check(self) -> None: ...

    async def close(self) -> None: ...


@dataclass
class SlowEvaluator:
    """Claims and reports as a worker does; a job waits for a slot to build and for the one to run."""

    db: Database
    latencies: Latencies
    judged: int = 0

    async def work(self) -> None:
        worker = await self.db.awrite(workers.register, "evaluate", "here", 0, "cpu")
        build, run = asyncio.Semaphore(BUILD_SLOTS), asyncio.Semaphore(1)
        async with asyncio.TaskGroup() as jobs:
            while True:
                await build.acquire()
                jobs.create_task(self._judge(await self._claim(worker), build, run))

    async def _claim(self, worker: int) -> EvaluationJob:
        while True:
            if claimed := await self.db.awrite(queue.claim, worker, "cpu", 600.0, 1):
                return claimed[0]
            await asyncio.sleep(POLL_S)

    async def _judge(self, job: EvaluationJob, build: asyncio.Semaphore, run: asyncio.Semaphore) -> None:
        await asyncio.sleep(self.latencies.build)
        build.release()
        async with run:
            await asyncio.sleep(self.latencies.run)
        await self.db.awrite(queue.report, job.id, job.lease, Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0))
        self.judged += 1


def config() -> Config:
    return Config.model_validate(
        {
            "collect": {
                "group_size": SIZE,
                "groups_per_step": GROUPS,
                "max_steps_per_episode": TURNS,
                "max_off_policy_steps": 0,
                "lease_s": 600.0,
            },
            "train": {"max_steps": 1, "batch_size": GROUPS * SIZE},
        },
        strict=False,
    )


async def set_up(
    db: Database, latencies: Latencies, policy: SlowPolicy, wait_s: float
) -> tuple[Collector, PolicyVersion]:
    settings = config()
    run = await db.awrite(runs.create, "pipeline", settings.model_dump(mode="json"), 0, "benchmark")
    version = await db.awrite(policies.add, run.id, 0, "/none", "none")
    problem = Problem("benchmark", 1, "wait", "train", "class Model: ...")
    problem_id, _ = await db.awrite(catalog.add, problem)

    async def latest() -> PolicyVersion | None:
        return await db.aread(policies.latest, run.id)

    batcher = Batcher(policy, version, latest, settings.policy.batch_size, wait_s)
    coder = SlowCoder(latencies.coder)
    stored = [StoredProblem(problem_id, problem)]
    return await Collector.create(db, run, settings, stored, coder, batcher), version


async def publish_when_done(db: Database, run: Run) -> None:
    """The trainer's part: there is a new version as soon as all groups are complete."""
    while True:
        if (await db.aread(rollouts.counts, run.id))["complete"] == GROUPS:
            await db.awrite(policies.add, run.id, 1, "/none", "none")
            return
        await asyncio.sleep(POLL_S)


async def pipelined(db: Database, latencies: Latencies) -> dict[str, Any]:
    policy = SlowPolicy(latencies.policy)
    collector, _ = await set_up(db, latencies, policy, config().policy.batch_wait_s)
    evaluator = SlowEvaluator(db, latencies)
    helpers = [
        asyncio.create_task(evaluator.work()),
        asyncio.create_task(publish_when_done(db, collector.run)),
    ]
    started, cpu = time.perf_counter(), time.process_time()
    await collector.run_to_end()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    for task in helpers:
        task.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)
    return {"seconds": seconds, "cpu_s": cpu, "judged": evaluator.judged, "batches": len(policy.batches)}


async def sequential(db: Database, latencies: Latencies, trajectories: int) -> dict[str, Any]:
    """One trajectory at a time, one stage at a time, and no waiting for a batch to fill."""
    collector, _ = await set_up(db, latencies, SlowPolicy(latencies.policy), 0.0)
    evaluator = SlowEvaluator(db, latencies)
    helpers = [
        asyncio.create_task(c)
        for c in (evaluator.work(), collector.suggesting.run(), collector.verdicts.run())
    ]
    problem = collector.problems[0]
    group = await db.awrite(rollouts.open_group, collector.run.id, problem.id, "cpu", GROUPS * SIZE, 36000.0)
    members = await db.aread(rollouts.trajectories, group.id)
    started = time.perf_counter()
    for member in members[:trajectories]:
        await run_trajectory(collector.services, group, problem, member)
    seconds = time.perf_counter() - started
    for task in helpers:
        task.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)
    return {"seconds": seconds, "judged": evaluator.judged}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-sequential", action="store_true", help="leave the slow loop out")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    asked = parser.parse_args()
    latencies, turns = Latencies(), GROUPS * SIZE * TURNS
    bound = latencies.bound(turns)
    with tempfile.TemporaryDirectory() as folder:
        with Database.open(f"sqlite:///{folder}/pipelined.db", create=True) as db:
            fast = asyncio.run(pipelined(db, latencies))
        assert fast["judged"] == turns, fast
        figures: dict[str, Any] = {"turns": turns, "bound_s": bound, "pipelined": fast}
        figures["over_bound"] = fast["seconds"] / bound
        print(
            f"{turns} turns: {fast['seconds']:.1f} s, {figures['over_bound']:.3f} x the bound of {bound:.1f} s;"
            f" {fast['cpu_s']:.1f} s of CPU, {fast['batches']} batches",
            flush=True,
        )
        if not asked.no_sequential:
            with Database.open(f"sqlite:///{folder}/sequential.db", create=True) as db:
                slow = asyncio.run(sequential(db, latencies, GROUPS * SIZE))
            assert slow["judged"] == turns, slow
            figures["sequential"], figures["faster"] = slow, slow["seconds"] / fast["seconds"]
            print(f"sequential: {slow['seconds']:.1f} s, {figures['faster']:.2f} times as long")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
