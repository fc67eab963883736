"""Play a benchmark: every problem is one group, played by the collector's own code; killed, it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from kpipe.bench.plan import Plan
from kpipe.bench.report import Result
from kpipe.coder import open_coder
from kpipe.collect.batcher import Batcher
from kpipe.collect.budget import RunBudget
from kpipe.collect.collector import check_coder
from kpipe.collect.rollout import Services, Suggester, run_trajectory
from kpipe.collect.verdicts import VerdictWatch
from kpipe.domain.harness import HARNESS, device_kind
from kpipe.domain.prompt import load_template
from kpipe.errors import LeaseLost
from kpipe.policy import Suggestion, SuggestRequest, open_policy
from kpipe.run.children import Child
from kpipe.run.supervisor import StageFailed, cores_beside_the_clock, log_dir
from kpipe.store import benchmarks, catalog, rollouts
from kpipe.store.database import Database
from kpipe.store.records import Group, PolicyVersion

GROUPS = 16
"""Played at once."""
POLL_S = 0.25


def measure(db: Database, db_url: str, plan: Plan) -> Result:
    """The episodes of the plan, of which those that are stored already are not played again. Raises KpipeError."""
    count = db.read(rollouts.next_ordinal, plan.run.id)
    if count < len(plan.problems) or db.read(benchmarks.open_groups, plan.run.id):
        asyncio.run(_play(db, db_url, plan))
    return Result(plan.label, plan.run.name, db.read(benchmarks.episodes, plan.run.id))


async def _play(db: Database, db_url: str, plan: Plan) -> None:
    async def lookup(key: str):  # type: ignore[no-untyped-def]
        return await db.aread(rollouts.cached_call, key)

    budget = RunBudget(db, plan.run.id, plan.config.coder.max_usd)
    coder = open_coder(plan.config.coder, lookup, budget=budget)
    watch = VerdictWatch(db)
    evaluator = Child(
        "evaluate",
        ["--run", plan.run.name, "--db", db_url],
        log_dir(plan.config, plan.run.name) / "evaluate.log",
    )
    cores = os.sched_getaffinity(0)
    helpers: list[asyncio.Task[None]] = []
    try:
        await check_coder(coder, plan.problems)
        suggester, sampling = await _voice(plan)
        evaluator.start()
        os.sched_setaffinity(0, cores_beside_the_clock() or cores)
        helpers = [asyncio.create_task(work) for work in (watch.run(), _guard(evaluator))]
        helpers += [asyncio.create_task(sampling.run())] if sampling else []
        services = Services(
            db=db,
            config=plan.config,
            seed=plan.run.seed,
            template=load_template(plan.config.policy.prompt),
            suggester=suggester,
            coder=coder,
            verdict_of=watch.verdict_of,
            harness=HARNESS,
            device=device_kind(plan.config.evaluate.device),
            draining=lambda: False,
        )
        await _groups(services, plan, helpers)
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        evaluator.kill()
        os.sched_setaffinity(0, cores)
        await coder.close()


async def _groups(s: Services, plan: Plan, helpers: list[asyncio.Task[None]]) -> None:
    """Open the groups that are missing, and play those that nobody plays, until none is open."""
    playing: set[asyncio.Task[None]] = set()
    try:
        while True:
            while len(playing) < GROUPS and (group := await _next(s, plan)):
                playing.add(asyncio.create_task(_group(s, group)))
            if not playing and not await s.db.aread(benchmarks.open_groups, plan.run.id):
                return
            done, _ = await asyncio.wait(
                [*playing, *helpers], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                playing.discard(task)
                task.result()
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def _next(s: Services, plan: Plan) -> Group | None:
    """A group that was left, or the next problem's."""
    lease_s, run_id = s.config.collect.lease_s, plan.run.id
    if left := await s.db.awrite(rollouts.claim_group, run_id, lease_s):
        return left
    ordinal = await s.db.aread(rollouts.next_ordinal, run_id)
    if ordinal >= len(plan.problems):
        return None
    problem, size = plan.problems[ordinal].id, s.config.collect.group_size
    return await s.db.awrite(rollouts.open_group, run_id, problem, s.device, size, lease_s)


async def _group(s: Services, group: Group) -> None:
    stored = await s.db.aread(catalog.get, group.problem_id)
    members = await s.db.aread(rollouts.trajectories, group.id)
    keeper = asyncio.create_task(_keep(s, group))
    plays = [run_trajectory(s, group, stored, m) for m in members if m.state == "open"]
    tasks = [asyncio.create_task(play) for play in plays]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        # Let go of it, so that the same command goes on at once.
        await asyncio.gather(*(_cancelled(task) for task in tasks))
        with contextlib.suppress(LeaseLost):
            await s.db.awrite(rollouts.renew_group, group.id, group.lease, 0.0)
        raise
    finally:
        await _cancelled(keeper)


async def _keep(s: Services, group: Group) -> None:
    while True:
        await asyncio.sleep(s.config.collect.lease_s / 3)
        await s.db.awrite(rollouts.renew_group, group.id, group.lease, s.config.collect.lease_s)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _guard(evaluator: Child) -> None:
    """Raises StageFailed when the evaluator cannot work; one that was killed is started again."""
    while True:
        if evaluator.exit_code is not None:
            if evaluator.exit_code == 2 or not evaluator.may_restart():
                raise StageFailed(evaluator)
            evaluator.start()
        await asyncio.sleep(POLL_S)


async def _voice(plan: Plan) -> tuple[Suggester, Batcher | None]:
    """Who suggests: the checkpoint, in batches; or always the same words."""
    if plan.checkpoint is None:
        return Words(plan.suggestion, plan.version.id), None
    policy = await asyncio.to_thread(open_policy, plan.config.policy, Path(plan.checkpoint))

    async def latest() -> PolicyVersion | None:
        return plan.version

    c = plan.config.policy
    batcher = Batcher(policy, plan.version, latest, c.batch_size, c.batch_wait_s)
    return batcher, batcher


class Words:
    """A Suggester without a model: the coder alone."""

    def __init__(self, text: str, version_id: int) -> None:
        self.text, self.version_id = text, version_id

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        sampling = {"engine": "none", "seed": request.seed}
        return Suggestion(self.text, [], [], [], "stop", sampling), self.version_id
