"""How many turns a second the store takes in, and how many jobs a second it hands out, on both databases.

    python benchmarks/store.py --workers 4 --json results.json

A turn is what the collector and the evaluator write for it: suggestion, kernel, claim, verdict, reward - five
transactions, texts and tokens of realistic size, every commit safe on the disk. A claim cycle is claim and
report. Postgres is a private server (test extras), with its default durability, unless --postgres names one.
What the same costs after a million turns: store_growth.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import blobs, catalog, policies, queue, rollouts, runs, workers
from kpipe.store.database import Database
from kpipe.store.records import CoderCall, SuggestedTurn, TokenRecord

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from postgres_server import PostgresServer

DEVICE, HARNESS, LEASE_S = "cpu", "1", 600.0
PROMPT_TOKENS, COMPLETION_TOKENS = 1024, 256
WORDS = [
    "int",
    "float",
    "for",
    "load",
    "store",
    "tile",
    "warp",
    "lane",
    "shared",
    "sync",
    "vector",
    "half",
    "grid",
]


def text(rng: random.Random, size: int) -> str:
    """About `size` bytes that compress and hash like source code."""
    return " ".join(rng.choices(WORDS, k=size // 6))


class Load:
    """A run, and turns to write into it."""

    def __init__(self, db: Database, seed: int = 0) -> None:
        self.db, self.rng = db, random.Random(seed)
        name = f"benchmark {time.time_ns()}"
        self.run = db.write(runs.create, name, {}, 0, "benchmark")
        self.problem_id, _ = db.write(catalog.add, Problem("benchmark", 1, name, "train", "class Model: ..."))
        self.version = db.write(policies.add, self.run.id, 0, "/none", "none")
        self.worker = db.write(workers.register, "evaluate", platform.node(), os.getpid(), DEVICE)

    def tokens(self) -> TokenRecord:
        ids = [self.rng.randrange(150_000) for _ in range(PROMPT_TOKENS + COMPLETION_TOKENS)]
        logprobs = [-self.rng.expovariate(1.0) for _ in range(COMPLETION_TOKENS)]
        return TokenRecord(ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:], logprobs, {"temperature": 1.0}, "stop")

    async def turn(self, trajectory_id: int, ordinal: int) -> float:
        """Write one whole turn; seconds that its five transactions took together."""
        suggested = SuggestedTurn(
            trajectory_id,
            ordinal,
            self.version.id,
            text(self.rng, 6000),
            "t",
            text(self.rng, 900),
            self.tokens(),
        )
        kernel, reply = text(self.rng, 4000), text(self.rng, 4500)
        call = CoderCall(
            f"{trajectory_id}/{ordinal}", "model", text(self.rng, 5000), reply, None, 1, 1, 0.01, 1.0, 1
        )
        verdict = Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0, 1.9, 2.1, log=text(self.rng, 1000))
        started = time.perf_counter()
        (turn,) = await self.db.awrite(rollouts.record_suggestions, [suggested])
        where = {"problem_id": self.problem_id, "harness": HARNESS, "device": DEVICE}
        await self.db.awrite(rollouts.record_kernel, turn, call, kernel, **where)
        (job,) = await self.db.awrite(queue.claim, self.worker, DEVICE, LEASE_S, 1)
        await self.db.awrite(queue.report, job.id, job.lease, verdict)
        await self.db.awrite(rollouts.settle, turn, reward=2.3, outcome="correct", fault=None, last=False)
        return time.perf_counter() - started

    async def turns(self, tasks: int, seconds: float) -> list[float]:
        """`tasks` trajectories at once, as many turns as fit into the time."""
        group = await self.db.awrite(
            rollouts.open_group, self.run.id, self.problem_id, DEVICE, tasks, LEASE_S
        )
        members = await self.db.aread(rollouts.trajectories, group.id)
        end = time.perf_counter() + seconds

        async def play(trajectory_id: int) -> list[float]:
            took: list[float] = []
            while time.perf_counter() < end:
                took.append(await self.turn(trajectory_id, len(took)))
            return took

        played = await asyncio.gather(*(play(m.id) for m in members))
        return [s for took in played for s in took]

    def fill(self, jobs: int) -> None:
        """Queue this many evaluations."""

        def enqueue(conn: Any) -> None:
            shas = blobs.put_all(conn, (f"kernel {self.run.id} {i}" for i in range(jobs)))
            for sha in shas.values():
                queue.enqueue(conn, self.problem_id, sha, HARNESS, DEVICE)

        self.db.write(enqueue)


def claim_cycles(url: str, worker: int) -> list[float]:
    """One process: claim and report until nothing waits; seconds of each cycle."""
    db, took = Database.open(url), []
    verdict = Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0, 1.9, 2.1)
    while True:
        started = time.perf_counter()
        jobs = db.write(queue.claim, worker, DEVICE, LEASE_S, 1)
        if not jobs:
            break
        db.write(queue.report, jobs[0].id, jobs[0].lease, verdict)
        took.append(time.perf_counter() - started)
    db.close()
    return took


def warm_up(url: str) -> None:
    """Load what a worker loads once in its life, and stay until every process has been asked."""
    Database.open(url).close()
    time.sleep(1.0)


def summary(took: list[float], wall_s: float) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100)
    return {
        "n": len(took),
        "per_second": len(took) / wall_s,
        "p50_ms": 1e3 * statistics.median(took),
        "p99_ms": 1e3 * cuts[98],
    }


def measure(url: str, tasks: int, processes: int, seconds: float, jobs: int) -> dict[str, dict[str, float]]:
    db = Database.open(url, create=True)
    load = Load(db)
    started = time.perf_counter()
    took = asyncio.run(load.turns(tasks, seconds))
    turns = summary(took, time.perf_counter() - started)
    load.fill(jobs)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(warm_up, [url] * processes))  # importing is not what is measured
        started = time.perf_counter()
        cycles = [
            s for part in pool.map(claim_cycles, [url] * processes, [load.worker] * processes) for s in part
        ]
        claims = summary(cycles, time.perf_counter() - started)
    db.close()
    return {"whole turns": turns, "claim cycles": claims}


@contextlib.contextmanager
def databases(postgres: str | None) -> Iterator[dict[str, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="kpipe-bench-", dir=".") as directory,
        contextlib.ExitStack() as stack,
    ):
        if postgres is None:
            server = stack.enter_context(PostgresServer(durable=True))
            server.sql("CREATE DATABASE benchmark")
            postgres = server.url("benchmark")
        yield {"SQLite": f"sqlite:///{directory}/kpipe.db", "Postgres": postgres}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=16, help="trajectories that write at once")
    parser.add_argument("--workers", type=int, default=4, help="processes that claim at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long turns are written")
    parser.add_argument("--jobs", type=int, default=4000, help="evaluations to claim")
    parser.add_argument("--postgres", help="URL of an empty database on an existing server")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    a = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {a.tasks} tasks, {a.workers} workers")
    print(
        "| database | operation | n | per second | p50 ms | p99 ms |\n| --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    results = {}
    with databases(a.postgres) as urls:
        for name, url in urls.items():
            results[name] = measure(url, a.tasks, a.workers, a.seconds, a.jobs)
            for operation, f in results[name].items():
                figures = f"{f['n']:.0f} | {f['per_second']:.0f} | {f['p50_ms']:.1f} | {f['p99_ms']:.1f}"
                print(f"| {name} | {operation} | {figures} |", flush=True)
    if a.json:
        a.json.write_text(
            json.dumps({"arguments": vars(a) | {"json": str(a.json)}, "results": results}, indent=2)
        )


if __name__ == "__main__":
    main()
