"""What questions cost in a database that has been in use for long, on both databases.

    python benchmarks/store_growth.py --turns 100000 1000000 --json growth.json

The rows are made in bulk (tests/bulk.py): token frames of 1,000 bytes up to 100,000 turns, smaller beyond. `stage` are the
statements that collect, evaluate and train repeat; their cost should not depend on the number of turns.
`page` is what `kpipe show`, the live progress and the views answer for people. Milliseconds, the median of
several; every write is committed, so it includes the disk.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from store import databases

from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import inspect, policies, queue, rollouts, show, training, workers
from kpipe.store.database import Database
from kpipe.store.records import CoderCall, SuggestedTurn, TokenRecord

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from bulk import DEVICE, fill

FULL_FRAMES = 100_000_000
"""Bytes of token frames, at most: a million turns must fit onto a small disk."""
VIEWS = ["v_best", "v_leaderboard", "v_coder_cost", "v_step", "v_run", "v_policy", "v_hacks"]
VIEWS += ["v_hack_rate", "v_outcomes", "v_dropped", "v_cache", "v_time", "v_queue"]
TOKENS = TokenRecord([1] * 1000, [2] * 200, [-0.5] * 200, {"temperature": 1.0}, "stop")
GOOD = Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0, 1.9, 2.1, log="all right")

Action = Callable[[], Any]


def stages(db: Database, run_id: int) -> Iterator[tuple[str, Action]]:
    """Name and action, in an order in which each finds what it needs."""
    version = db.read(policies.latest, run_id)
    assert version is not None
    newest, step, numbers = version.id, version.step, count()
    jobs: list[Any] = []
    new_turns: list[int] = []
    members = db.read(rollouts.trajectories, db.write(rollouts.open_group, run_id, 1, DEVICE, 50, 600.0).id)
    free = iter(members)

    def suggest() -> None:
        said = SuggestedTurn(next(free).id, 0, newest, "prompt", "t", "tile it", TOKENS)
        new_turns.extend(db.write(rollouts.record_suggestions, [said]))

    def implement() -> None:
        n = next(numbers)
        call = CoderCall(f"new {n}", "gpt", "request", "reply", None, 1, 1, 0.01, 1.0, 1)
        where = {"problem_id": 1, "harness": "1", "device": DEVICE}
        db.write(rollouts.record_kernel, new_turns[n], call, f"new kernel {n}", **where)

    def claim() -> None:
        jobs.extend(db.write(queue.claim, 1, DEVICE, 600.0, 1))

    def report() -> None:
        job = jobs.pop()
        db.write(queue.report, job.id, job.lease, GOOD)

    def settle() -> None:
        turn = new_turns.pop()
        db.write(rollouts.settle, turn, reward=1.0, outcome="correct", fault=None, last=False)

    yield "collect: record a suggestion", suggest
    yield "collect: record a kernel, queue it", implement
    yield "collect: resume an abandoned group", lambda: db.write(rollouts.claim_group, run_id, 600.0)
    yield "collect: turns of a trajectory", lambda: db.read(rollouts.turns, 5)
    yield "collect: stored answer", lambda: db.read(rollouts.cached_call, "c7")
    yield "collect: how far ahead", lambda: db.read(rollouts.ahead, run_id, 1)
    yield "evaluate: claim", claim
    yield "evaluate: renew", lambda: db.write(queue.renew, [(jobs[-1].id, jobs[-1].lease)], 600.0)
    yield "evaluate: report", report
    yield "collect: settle", settle
    yield "evaluate: sweep lost leases", lambda: db.write(queue.reap, 3)
    yield "evaluate: depth of the queue", lambda: db.read(queue.depth)
    yield "any: heartbeat", lambda: db.write(workers.heartbeat, 1, {"busy": 1})
    yield "train: ready", lambda: db.read(training.ready, run_id, step, 1)
    yield "train: stale groups", lambda: db.read(training.stale_groups, run_id, step, 1)
    yield "train: take 1 group of 16 turns", lambda: db.read(training.take, run_id, step, 1, 1)
    yield "train: newest policy", lambda: db.read(policies.latest, run_id)


def pages(db: Database, run_id: int) -> Iterator[tuple[str, Action]]:
    yield "live progress", lambda: db.read(inspect.progress, run_id)
    for name, ask, arguments in [
        ("run", show.run, (None,)),
        ("run NAME", show.run, ("long",)),
        ("group", show.group, (None, "long")),
        ("group ID", show.group, (5,)),
        ("trajectory ID", show.one_trajectory, (5,)),
        ("turn", show.one_turn, (None, "long")),
        ("turn ID", show.one_turn, (5,)),
        ("queue", show.queue, ()),
        ("workers", show.who, ()),
        ("best", show.best, ("long",)),
        ("cost", show.cost, ("long",)),
    ]:
        yield f"kpipe show {name}", lambda ask=ask, arguments=arguments: db.read(ask, *arguments)
    for view in VIEWS:
        query = sa.text(f"SELECT * FROM {view}")
        yield f"all of {view}", lambda query=query: db.read(lambda conn: conn.execute(query).all())


def median_ms(action: Action, times: int) -> float:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        took.append(1e3 * (time.perf_counter() - started))
    return statistics.median(took)


def measure(db: Database, turns: int, *, with_pages: bool) -> dict[str, float]:
    started = time.perf_counter()
    run_id = fill(db, turns, min(1000, FULL_FRAMES // turns))
    print(f"<!-- {db.dialect}: {turns} turns in {time.perf_counter() - started:.0f} s -->", flush=True)
    return {
        **{f"stage | {name}": median_ms(action, 25) for name, action in stages(db, run_id)},
        **{f"page | {name}": median_ms(action, 3) for name, action in pages(db, run_id) if with_pages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[100_000])
    parser.add_argument("--only", choices=["SQLite", "Postgres"], help="one database instead of both")
    parser.add_argument("--no-pages", action="store_true", help="only the statements of the stages")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    a = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for turns in a.turns:
        with databases(None) as urls:
            for name, url in urls.items():
                if a.only in (None, name):
                    with Database.open(url, create=True) as db:
                        results[f"{name}, {turns:,} turns"] = measure(db, turns, with_pages=not a.no_pages)
    print(f"Python {platform.python_version()}, milliseconds\n")
    print(f"| kind | what | {' | '.join(results)} |\n| --- | --- |{' ---: |' * len(results)}")
    for what in next(iter(results.values())):
        print(f"| {what} | {' | '.join(f'{r[what]:.1f}' for r in results.values())} |")
    if a.json:
        a.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
