"""`kpipe evaluate`: takes evaluations from the queue under leases and writes verdicts. Never sees torch.

Several evaluations are claimed ahead, so that the device never waits for a build. The first SIGTERM or
SIGINT finishes what was begun and gives back the rest; the second gives everything back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket

from kpipe.config import EvaluateConfig, from_json
from kpipe.domain.harness import HARNESS, device_kind
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import EvaluatorError, LeaseLost, UsageError
from kpipe.evaluate.build import ensure_runtime
from kpipe.evaluate.build_cache import BuildCache
from kpipe.evaluate.judge import Judge, cache_dir
from kpipe.evaluate.processes import Broken
from kpipe.evaluate.toolchain import find_toolchain
from kpipe.store import queue, runs, workers
from kpipe.store.database import Database
from kpipe.store.records import EvaluationJob

log = logging.getLogger(__name__)
POLL_S, BEAT_S, REAP_S = 0.05, 2.0, 1.0
AHEAD = 2
"""Evaluations claimed beyond those that are in work."""
RETRY_S, FOREIGN_S = 0.5, 60.0
"""How long a job rests that was given back: after trouble here, and when it is for another harness."""


def main(db_url: str, *, run_name: str | None = None, once: bool = False) -> None:
    """Evaluate until told to stop; `once` until the queue is empty. Raises KpipeError."""
    db = Database.open(db_url)
    try:
        interrupts = work(db, read_config(db, run_name), once=once)
    finally:
        db.close()
    if interrupts > 1:
        os._exit(0)  # threads may still wait for compilers


def work(db: Database, config: EvaluateConfig, *, once: bool) -> int:
    """The same over an open database; how often it was interrupted. Raises KpipeError."""
    device_kind(config.device)
    find_toolchain()
    cache = BuildCache(cache_dir(config), config.cache_mb)
    ensure_runtime(cache, log.info)
    return asyncio.run(_main(db, config, cache, once))


def read_config(db: Database, run_name: str | None) -> EvaluateConfig:
    """How the run wants its kernels judged. Raises UsageError."""
    if run_name is None:
        return from_json(db.read(runs.only).config).evaluate
    run = db.read(runs.get, run_name)
    if run is None:
        raise UsageError(
            f"There is no run {run_name!r} in this database.", "Start it with `kpipe collect --run NAME`."
        )
    return from_json(run.config).evaluate


async def _main(db: Database, config: EvaluateConfig, cache: BuildCache, once: bool) -> int:
    """How often the worker was interrupted."""
    try:
        async with Judge(config, cache) as judge:
            if judge.sandbox == "none":
                log.warning("this kernel cannot confine processes: kernels can read and write what you can")
            worker = await Worker.create(db, config, judge)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, worker.interrupt)
            await worker.run(once=once)
            return worker.interrupts
    except Broken as broken:
        raise EvaluatorError(
            f"The evaluator's processes do not start: {broken}.", "`kpipe doctor` shows what is missing."
        ) from None


class Worker:
    """One worker row in the database. A job in work has a task; its lease is renewed until that ends."""

    def __init__(self, db: Database, config: EvaluateConfig, judge: Judge, worker_id: int) -> None:
        self.db, self.config, self.judge, self.id = db, config, judge, worker_id
        self.device = device_kind(config.device)
        self.capacity = judge.builders + 1
        self._in_work = asyncio.Semaphore(self.capacity)
        self._jobs: dict[asyncio.Task[None], EvaluationJob] = {}
        self._begun: set[int] = set()
        self._changed = asyncio.Event()
        self.interrupts = 0
        self.judged = 0

    @classmethod
    async def create(cls, db: Database, config: EvaluateConfig, judge: Judge) -> Worker:
        device = device_kind(config.device)
        worker_id = await db.awrite(workers.register, "evaluate", socket.gethostname(), os.getpid(), device)
        return cls(db, config, judge, worker_id)

    def interrupt(self) -> None:
        """Drain; the second time, stop."""
        self.interrupts += 1
        self._changed.set()
        for task, job in self._jobs.items():
            if self.interrupts > 1 or job.id not in self._begun:
                task.cancel()

    async def run(self, *, once: bool = False) -> None:
        """Work until interrupted, or `once` until nothing waits."""
        helpers = [asyncio.create_task(work()) for work in (self._renew, self._beat, self._reap)]
        try:
            while self.interrupts == 0:
                claimed = await self._claim()
                if once and not claimed and not self._jobs:
                    return
                await self._pause(helpers, busy=claimed > 0)
            while self._jobs:
                await asyncio.wait(self._jobs)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _claim(self) -> int:
        free = self.capacity + AHEAD - len(self._jobs)
        if free <= 0:
            return 0
        jobs = await self.db.awrite(queue.claim, self.id, self.device, self.config.lease_s, free)
        for job in jobs:
            task = asyncio.create_task(self._work(job))
            self._jobs[task] = job
            task.add_done_callback(self._finished)
        await asyncio.sleep(0)  # a task that has not started could not give its job back
        if self.interrupts:  # the signal came while the database was asked
            for task, job in self._jobs.items():
                if job.id not in self._begun:
                    task.cancel()
        return len(jobs)

    async def _pause(self, helpers: list[asyncio.Task[None]], *, busy: bool) -> None:
        """Until a job is done or it is time to look again; pass on what a helper task raised."""
        self._changed.clear()
        if not busy and not self.interrupts:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), POLL_S)
        for task in helpers:
            if task.done():
                task.result()

    def _finished(self, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(task)
        self._begun.discard(job.id)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("evaluation %d: %s", job.id, error, exc_info=error)

    async def _work(self, job: EvaluationJob) -> None:
        """From claim to report. A cancelled job is given back without counting an attempt."""
        try:
            if job.harness != HARNESS:
                await self._give_back(job, f"for harness {job.harness}, this is {HARNESS}", FOREIGN_S, None)
                return
            async with self._in_work:
                self._begun.add(job.id)
                verdict = await self.judge.judge(job.reference, job.kernel, seeds=job.seeds)
        except asyncio.CancelledError:
            await self._give_back(job, "worker stopped", 0.0, None)
            raise
        await self._report(job, verdict)

    async def _report(self, job: EvaluationJob, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.INFRA:
            log.warning("evaluation %d: %s", job.id, verdict.log)
            await self._give_back(job, verdict.log, RETRY_S * job.attempt, self.config.max_attempts)
            return
        try:
            await self.db.awrite(queue.report, job.id, job.lease, verdict)
            self.judged += 1
        except LeaseLost:
            log.warning("evaluation %d took longer than its lease; its verdict is dropped", job.id)

    async def _give_back(self, job: EvaluationJob, reason: str, delay_s: float, attempts: int | None) -> None:
        with contextlib.suppress(LeaseLost):
            await self.db.awrite(
                queue.give_back, job.id, job.lease, reason=reason, delay_s=delay_s, max_attempts=attempts
            )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_s / 3)
            leases = [(job.id, job.lease) for job in self._jobs.values()]
            if not leases:
                continue
            lost = set(await self.db.awrite(queue.renew, leases, self.config.lease_s))
            for task, job in self._jobs.items():
                if job.id in lost:
                    task.cancel()

    async def _beat(self) -> None:
        while True:
            status = {"running": len(self._begun), "claimed": len(self._jobs), "judged": self.judged}
            await self.db.awrite(workers.heartbeat, self.id, status)
            await asyncio.sleep(BEAT_S)

    async def _reap(self) -> None:
        """Free the jobs of workers that died, this one's predecessor included."""
        while True:
            await self.db.awrite(queue.reap, self.config.max_attempts)
            await asyncio.sleep(REAP_S)
