"""The collector: many trajectories at once, each advancing on its own, throttled by the trainer's progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kpipe.coder import Coder, open_coder
from kpipe.collect.budget import RunBudget
from kpipe.collect.draining import Draining
from kpipe.collect.rollout import Services, run_trajectory
from kpipe.collect.schedule import by_solve_rate, may_start, problem_for
from kpipe.collect.suggesting import Suggesting, open_suggesting
from kpipe.collect.verdicts import VerdictWatch
from kpipe.config import Config, from_json
from kpipe.domain.harness import HARNESS, device_kind
from kpipe.domain.prompt import load_template
from kpipe.errors import BudgetSpent, CoderError, LeaseLost, UsageError
from kpipe.policy import prepare_base
from kpipe.policy.owner import claim
from kpipe.store import catalog, policies, rollouts, runs, workers
from kpipe.store.database import Database
from kpipe.store.records import Group, PolicyVersion, Run, StoredProblem

log = logging.getLogger("kpipe.collect")
POLL_S = 0.1
RECENT_GROUPS = 8
"""Groups per problem that say how often it is solved now."""


def main(db_url: str, run_name: str, *, cpus: Iterable[int] = ()) -> None:
    """Collect until the run has its last update. SIGTERM or SIGINT once drains, twice stops at once.

    `cpus` are the cores to stay on once the base policy is built. Raises KpipeError.
    """
    db = Database.open(db_url)
    try:
        asyncio.run(_main(db, run_name, frozenset(cpus)))
    finally:
        db.close()


async def _main(db: Database, run_name: str, cpus: frozenset[int]) -> None:
    run = await db.aread(runs.get, run_name)
    if run is None:
        raise UsageError(
            f"There is no run {run_name!r} in this database.", "Start it with `kpipe collect --run NAME`."
        )
    config = from_json(run.config)
    problems = await db.aread(
        catalog.select,
        config.problems.suite,
        config.problems.split,
        config.problems.levels,
        config.problems.names,
    )
    check_problems(config, problems)

    async def lookup(key: str):  # type: ignore[no-untyped-def]
        return await db.aread(rollouts.cached_call, key)

    coder = open_coder(config.coder, lookup, budget=RunBudget(db, run.id, config.coder.max_usd))
    try:
        await check_coder(coder, problems)
        base = await ensure_base(db, run, config)
        if cpus:
            os.sched_setaffinity(0, cpus)
        suggesting = await open_suggesting(db, run, config, base, [p.problem for p in problems])
        collector = await Collector.create(db, run, config, problems, coder, suggesting)
        await collector.run_to_end()
    finally:
        await coder.close()


def check_problems(config: Config, problems: Sequence[StoredProblem]) -> None:
    """Refuse to collect from nothing, and from what is held out. Raises UsageError."""
    if not problems:
        raise UsageError(
            f"No problem matches suite {config.problems.suite!r}, split {config.problems.split!r}.",
            "See `kpipe problems list`, or add some with `kpipe problems add PATH`.",
        )
    if held := [p.problem.name for p in problems if p.problem.split == "heldout"]:
        raise UsageError(
            f"problems.split = {config.problems.split} would train on {len(held)} held-out problems ({held[0]} ...).",
            "Set problems.split=train: what is held out is there to measure on.",
        )


async def check_coder(coder: Coder, problems: Sequence[StoredProblem]) -> None:
    """Refuse before anything is opened or paid. Raises CoderError."""
    for stored in problems:
        if reason := coder.supports(stored.problem):
            raise CoderError(
                f"The coder cannot work on problem {stored.problem.name}: {reason}.",
                "Choose other problems (problems.suite, problems.names) or another coder (coder.kind).",
            )
    await coder.check()


async def ensure_base(db: Database, run: Run, config: Config) -> PolicyVersion:
    """The newest policy version of the run; version 0 is built and recorded when there is none."""
    if newest := await db.aread(policies.latest, run.id):
        return newest
    path = (Path(config.output_dir) / run.name / "step-000000").resolve()
    claim(path.parent, await db.aread(runs.identity, run.id), known=False)
    log.info("preparing the base policy in %s", path)
    digest = await asyncio.to_thread(prepare_base, config, path)
    return await db.awrite(policies.add, run.id, 0, str(path), digest)


@dataclass
class Collector:
    """Opens groups while the capacity rule allows it and plays their trajectories."""

    db: Database
    run: Run
    config: Config
    problems: Sequence[StoredProblem]
    services: Services
    suggesting: Suggesting
    verdicts: VerdictWatch
    worker_id: int
    stopping: bool = False
    spent: BudgetSpent | None = None
    groups: dict[asyncio.Task[None], Group] = field(default_factory=dict)

    @classmethod
    async def create(
        cls,
        db: Database,
        run: Run,
        config: Config,
        problems: Sequence[StoredProblem],
        coder: Coder,
        suggesting: Suggesting,
    ) -> Collector:
        verdicts = VerdictWatch(db)
        worker = await db.awrite(workers.register, "collect", socket.gethostname(), os.getpid(), "cpu")
        services = Services(
            db=db,
            config=config,
            seed=run.seed,
            template=load_template(config.policy.prompt),
            suggester=suggesting,
            coder=coder,
            verdict_of=verdicts.verdict_of,
            harness=HARNESS,
            device=device_kind(config.evaluate.device),
            draining=lambda: self.stopping,
        )
        self = cls(db, run, config, problems, services, suggesting, verdicts, worker)
        return self

    async def run_to_end(self) -> None:
        """Until the run's last update is trained, or until drained."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        helpers = [asyncio.create_task(c) for c in (self.suggesting.run(), self.verdicts.run(), self._beat())]
        try:
            while not self.stopping and not await self._finished():
                await self._start_groups()
                await self._reap([*helpers])
            await self._drain_groups()
            if self.spent:
                raise self.spent
        finally:
            for task in (*helpers, *self.groups):
                task.cancel()
            await asyncio.gather(*helpers, *self.groups, return_exceptions=True)

    def drain(self) -> None:
        """First call: finish paid coder calls, store them, stop; after collect.drain_s or a second call, stop now."""
        if self.stopping:
            self._stop_now()
            return
        seconds = self.config.collect.drain_s
        log.info("draining: no new turns; paid coder calls are waited for, %g s at most", seconds)
        self.stopping = True
        asyncio.get_running_loop().call_later(seconds, self._stop_now)
        self.suggesting.drain()
        self.verdicts.drain()

    def _stop_now(self) -> None:
        for task in self.groups:
            task.cancel()

    async def _finished(self) -> bool:
        newest = await self.db.aread(policies.latest, self.run.id)
        return newest is not None and newest.step >= self.config.train.max_steps

    async def _start_groups(self) -> None:
        lease_s = self.config.collect.lease_s
        while resumed := await self.db.awrite(rollouts.claim_group, self.run.id, lease_s):
            log.info("resuming group %d", resumed.ordinal)
            self._play(resumed)
        while await self._has_room():
            ordinal = await self.db.aread(rollouts.next_ordinal, self.run.id)
            stored = await self._problem(ordinal)
            group = await self.db.awrite(
                rollouts.open_group,
                self.run.id,
                stored.id,
                self.services.device,
                self.config.collect.group_size,
                lease_s,
            )
            self._play(group)

    async def _problem(self, ordinal: int) -> StoredProblem:
        how = self.config.collect.sampling
        if how != "by_solve_rate":
            return problem_for(self.problems, ordinal, self.run.seed, how)
        recent = RECENT_GROUPS * len(self.problems)
        solved = await self.db.aread(rollouts.solved, self.run.id, recent)
        rates = [solved.get(stored.id, (0, 0)) for stored in self.problems]
        return by_solve_rate(self.problems, rates, ordinal, self.run.seed)

    async def _has_room(self) -> bool:
        c = self.config
        ahead = await self.db.aread(rollouts.ahead, self.run.id, c.collect.max_off_policy_steps)
        return may_start(
            running=ahead["open"],
            fresh=ahead["fresh"],
            trainer_step=ahead["trainer_step"],
            max_steps=c.train.max_steps,
            groups_per_step=c.collect.groups_per_step,
            max_off_policy_steps=c.collect.max_off_policy_steps,
        )

    def _play(self, group: Group) -> None:
        task = asyncio.create_task(self._group(group))
        self.groups[task] = group

    async def _group(self, group: Group) -> None:
        stored = await self.db.aread(catalog.get, group.problem_id)
        members = await self.db.aread(rollouts.trajectories, group.id)
        keeper = asyncio.create_task(self._keep_lease(group))
        plays = [
            asyncio.create_task(run_trajectory(self.services, group, stored, m))
            for m in members
            if m.state == "open"
        ]
        try:
            await _all_or_first_error([*plays, keeper], until=plays)
        except (Draining, BudgetSpent) as stop:
            if isinstance(stop, BudgetSpent) and not self.stopping:
                self.spent = stop
                self.drain()
            await asyncio.gather(*plays, return_exceptions=True)
            with contextlib.suppress(LeaseLost):
                await self.db.awrite(rollouts.renew_group, group.id, group.lease, 0.0)
        except LeaseLost:
            log.warning("group %d was taken over by another collector", group.ordinal)
        finally:
            for task in (*plays, keeper):
                task.cancel()
            await asyncio.gather(*plays, keeper, return_exceptions=True)

    async def _keep_lease(self, group: Group) -> None:
        lease_s = self.config.collect.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            await self.db.awrite(rollouts.renew_group, group.id, group.lease, lease_s)

    async def _reap(self, helpers: list[asyncio.Task[None]]) -> None:
        """Wait a little; pass on what a finished task raised."""
        done, _ = await asyncio.wait(
            [*self.groups, *helpers], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            self.groups.pop(task, None)
            task.result()

    async def _drain_groups(self) -> None:
        while self.groups:
            done, _ = await asyncio.wait(self.groups)
            for task in done:
                self.groups.pop(task)
                with contextlib.suppress(asyncio.CancelledError):
                    task.result()

    async def _beat(self) -> None:
        while True:
            await self.db.awrite(
                workers.heartbeat,
                self.worker_id,
                {
                    "groups": len(self.groups),
                    "policy": self.suggesting.version.step,
                    **self.services.tally,
                },
            )
            await asyncio.sleep(2.0)


async def _all_or_first_error(tasks: list[asyncio.Task[None]], *, until: list[asyncio.Task[None]]) -> None:
    """Wait for every task in `until`, or raise what the first failing one of `tasks` raised."""
    pending = set(tasks)
    while any(t in pending for t in until):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
