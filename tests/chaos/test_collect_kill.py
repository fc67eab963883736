"""Kill -9 of the collector, again and again, at any point: every group ends whole, and nothing stored is paid again.

The coder is a server on the loopback that numbers its answers. An answer is *received* when the transaction that
stores it is committed: the same one that gives the turn its kernel. Between the last byte of an answer and that
commit lies the one window in which an answer can be lost and is asked for again; nobody can tell it from an answer
that never arrived. `KPIPE_KILLS=50` kills so often, `-s` prints what was lost.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from loopback import Loopback, code_reply, completion, serving
from unit.policy.conftest import byte_tokenizer, random_model

from kpipe.collect import collector
from kpipe.config import Config
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.policy import digest
from kpipe.store import catalog, policies, queue, runs, workers
from kpipe.store.database import Database
from kpipe.store.verify import verify

KILLS = int(os.environ.get("KPIPE_KILLS", "6"))
SIZE, TURNS = 4, 4
LEASE_S = 1.5
HANG_S = 200.0  # a starved machine is no error


@dataclass
class Counting:
    """An answer like no other for each request; which bodies were asked for, and which answers went out whole."""

    slow_s: float = 0.25
    asked: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[int, float] = field(default_factory=dict)
    numbers: int = 0

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = self.numbers = self.numbers + 1
        self.asked[json.dumps(body, sort_keys=True)].append(number)
        await asyncio.sleep(random.uniform(0.5, 1.5) * self.slow_s)
        kernel = f"import torch\n\n\nclass ModelNew(torch.nn.Module):\n    number = {number}\n"
        response = web.json_response(completion(code_reply(kernel)))
        await response.prepare(request)
        await response.write_eof()
        if request.transport is not None and not request.transport.is_closing():
            self.sent[number] = time.monotonic()
        return response


@dataclass
class World:
    url: str
    run: int
    path: Path
    groups: int

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.path}?mode=ro", uri=True) as db:
            return db.execute(sql).fetchall()

    def complete(self) -> int:
        return int(self.query("SELECT count(*) FROM rollout_group WHERE state = 'complete'")[0][0])

    def recorded(self) -> set[int]:
        """Numbers of the answers in the store."""
        replies = self.query("SELECT b.body FROM coder_call c JOIN blob b ON b.sha = c.reply_sha")
        return {int(body.partition("number = ")[2].split()[0]) for (body,) in replies}

    def publish(self) -> None:
        """The trainer's last update, without the training: the collector is done."""
        with Database.open(self.url) as db:
            db.read(verify)
            db.write(policies.add, self.run, 1, "/none", "none")


def make(directory: Path, coder: Loopback, groups: int, **collect: Any) -> World:
    model = directory / "model"
    random_model(259, eos_token_id=byte_tokenizer().eos_token_id).save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    config = Config.model_validate(
        {
            "policy": {"kind": "local", "max_new_tokens": 6, "batch_wait_s": 0.01, "threads": 1},
            "coder": {"kind": "openai", "base_url": coder.url, "api_key_env": "", "concurrency": 8},
            "collect": {
                "group_size": SIZE,
                "groups_per_step": groups,
                "max_steps_per_episode": TURNS,
                "lease_s": LEASE_S,
                **collect,
            },
            "train": {"max_steps": 1, "batch_size": groups * SIZE},
        }
    )
    path = directory / "kpipe.db"
    with Database.open(f"sqlite:///{path}", create=True) as db:
        for name in ("one", "two"):
            source = f"class Model: # {name}\n    ...\n"
            db.write(catalog.add, Problem("builtin", 1, name, "train", source))
        run = db.write(runs.create, "killed", config.model_dump(mode="json"), 0, "0")
        db.write(policies.add, run.id, 0, str(model), digest(model))
    return World(f"sqlite:///{path}", run.id, path, groups)


@pytest.fixture
def coder() -> Iterator[tuple[Loopback, Counting]]:
    counting = Counting()
    with serving(Loopback(default=counting)) as server:
        yield server, counting


@pytest.fixture
def judging() -> Iterator[Any]:
    """Start an evaluator that finds every kernel correct."""
    stop, threads = threading.Event(), []

    def judge(world: World) -> None:
        with Database.open(world.url) as db:
            worker = db.write(workers.register, "evaluate", "here", 0, "cpu")
            while not stop.wait(0.03):
                for job in db.write(queue.claim, worker, "cpu", 600.0, 8):
                    db.write(queue.report, job.id, job.lease, Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0))

    def start(world: World) -> None:
        threads.append(threading.Thread(target=judge, args=(world,), daemon=True))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def starter() -> Any:
    """Fresh processes that need not import torch again: forked from a clean server that has."""
    context = multiprocessing.get_context("forkserver")
    preloaded = ("kpipe.collect.collector", "kpipe.policy.local", "kpipe.coder.openai")
    context.set_forkserver_preload([*preloaded, "transformers.models.qwen2.modeling_qwen2"])
    return context


def started(starter: Any, world: World) -> BaseProcess:
    process: BaseProcess = starter.Process(target=collector.main, args=(world.url, "killed"))
    process.start()
    return process


def until(condition: Any, process: BaseProcess) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert process.exitcode is None, f"the collector ended with {process.exitcode}"
        assert time.monotonic() < deadline, "the collector hangs"
        time.sleep(0.005)


def end(process: BaseProcess) -> int:
    process.join(HANG_S)
    assert process.exitcode is not None, "the collector does not end"
    return process.exitcode


def nothing_is_missing_or_doubled(world: World, counting: Counting) -> dict[str, int]:
    per_trajectory = world.query(
        "SELECT t.id, count(u.id), min(u.ordinal), max(u.ordinal), count(u.reward)"
        " FROM trajectory t LEFT JOIN turn u ON u.trajectory_id = t.id GROUP BY t.id"
    )
    assert [row[1:] for row in per_trajectory] == [(TURNS, 0, TURNS - 1, TURNS)] * world.groups * SIZE
    assert world.query("SELECT DISTINCT state FROM rollout_group") == [("complete",)]
    recorded = world.recorded()
    repeated = [numbers for numbers in counting.asked.values() if len(numbers) > 1]
    for body, numbers in counting.asked.items():
        assert not recorded & {*numbers[:-1]}, "asked again although the answer was stored"
        assert numbers[-1] in recorded, (numbers, body)
    return {
        "requests": counting.numbers,
        "distinct": len(counting.asked),
        "asked again": len(repeated),
        "sent whole and lost": len({*counting.sent} - recorded),
    }


def test_killed_at_any_point_it_loses_nothing_and_pays_for_nothing_twice(
    tmp_path: Path, starter: Any, coder: tuple[Loopback, Counting], judging: Any
) -> None:
    server, counting = coder
    rng, kills = random.Random(3), 0
    known: set[int] = set()
    ages_ms: list[float] = []
    world = make(tmp_path, server, groups=KILLS + 2)
    judging(world)
    while world.complete() < world.groups:
        process = started(starter, world)
        if kills == KILLS:
            until(lambda: world.complete() == world.groups, process)
            world.publish()
            assert end(process) == 0
            break
        if rng.random() < 0.85:
            seen = counting.numbers
            until(lambda seen=seen: counting.numbers > seen or world.complete() == world.groups, process)
        time.sleep(rng.uniform(0.0, 0.7))
        process.kill()
        killed = time.monotonic()
        end(process)
        kills += 1
        lost = {
            number: killed - counting.sent[number] for number in {*counting.sent} - world.recorded() - known
        }
        known |= lost.keys()
        ages_ms += [1000 * age for age in lost.values()]
    assert kills == KILLS
    told = nothing_is_missing_or_doubled(world, counting)
    print(f"\n{kills} kills: {told}; ms between an answer and the kill that lost it: {sorted(ages_ms)}")


def test_sigterm_waits_for_what_is_paid(
    tmp_path: Path, starter: Any, coder: tuple[Loopback, Counting], judging: Any
) -> None:
    server, counting = coder
    world = make(tmp_path, server, groups=2)
    judging(world)
    process = started(starter, world)
    until(lambda: counting.numbers > 3, process)
    os.kill(process.pid or 0, signal.SIGTERM)
    assert end(process) == 0
    assert {*counting.sent} == world.recorded(), "paid and not stored"
    assert world.complete() < world.groups
    process = started(starter, world)
    until(lambda: world.complete() == world.groups, process)
    world.publish()
    assert end(process) == 0
    told = nothing_is_missing_or_doubled(world, counting)
    assert (told["asked again"], told["sent whole and lost"]) == (0, 0)


def test_sigterm_does_not_wait_for_ever(
    tmp_path: Path, starter: Any, coder: tuple[Loopback, Counting], judging: Any
) -> None:
    server, counting = coder
    counting.slow_s = 1e6
    world = make(tmp_path, server, groups=2, drain_s=0.2)
    process = started(starter, world)
    until(lambda: counting.numbers > 3, process)
    os.kill(process.pid or 0, signal.SIGTERM)
    assert end(process) == 0
