"""Collectors, workers, a reaper and a trainer in one database at the same time: no deadlock, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from store.store_world import GOOD, LEASE_S, World, call

from kpipe.store import queue, rollouts, training
from kpipe.store.database import Database
from kpipe.store.records import Trajectory
from kpipe.store.verify import verify

COLLECTORS, GROUPS, SIZE, TURNS, KERNELS = 3, 4, 2, 2, 5


def test_everything_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpipe.store.database.TRIES", 1)  # a deadlock must not be hidden by trying again
    world = World.make(database)
    done = threading.Event()
    with ThreadPoolExecutor(COLLECTORS + len(ROLES)) as threads:
        collectors = [threads.submit(collect, world, done) for _ in range(COLLECTORS)]
        others = [threads.submit(until, done, work, world) for work in ROLES]
        for future in (*collectors, *others):
            future.add_done_callback(lambda _: done.set() if all(f.done() for f in collectors) else None)
            future.add_done_callback(lambda f: done.set() if f.exception() else None)
    for future in (*collectors, *others):
        future.result()
    facts = database.read(verify)
    assert facts["turns"] == COLLECTORS * GROUPS * SIZE * TURNS
    assert facts["evaluations"] == KERNELS
    assert database.read(rollouts.counts, world.run.id)["complete"] == COLLECTORS * GROUPS


def until(done: threading.Event, work: Callable[[World], None], world: World) -> None:
    while not done.is_set():
        work(world)


def collect(world: World, done: threading.Event) -> None:
    for _ in range(GROUPS):
        group, members = world.open_group(SIZE)
        with ThreadPoolExecutor(SIZE) as threads:
            players = [threads.submit(play, world, m, done) for m in members]
            while not all(p.done() for p in players):
                world.db.write(rollouts.renew_group, group.id, group.lease, LEASE_S)
        for player in players:
            player.result()
        world.db.read(rollouts.counts, world.run.id, 1)


def play(world: World, member: Trajectory, done: threading.Event) -> None:
    for ordinal in range(TURNS):
        turn = world.suggest(member, ordinal)
        kernel = f"kernel {turn % KERNELS}"
        evaluation = world.implement(turn, kernel, call(kernel))
        while (
            world.db.read(rollouts.evaluations, [evaluation])[evaluation].state != "done"
            and not done.is_set()
        ):
            pass
        world.settle(turn, float(turn % 3), last=ordinal == TURNS - 1)


def evaluate(world: World) -> None:
    jobs = world.claim(limit=2)
    assert world.db.write(queue.renew, [(job.id, job.lease) for job in jobs], LEASE_S) == []
    for job in jobs:
        if job.id % 2 and job.attempt == 1:
            world.db.write(queue.give_back, job.id, job.lease, reason="test", delay_s=0.0, max_attempts=3)
        else:
            world.db.write(queue.report, job.id, job.lease, GOOD)


def reap(world: World) -> None:
    world.db.write(queue.reap, 3)
    assert world.db.write(rollouts.claim_group, world.run.id, LEASE_S) is None


def train(world: World) -> None:
    step = world.db.read(rollouts.counts, world.run.id)["trainer_step"]
    if groups := world.db.read(training.take, world.run.id, step, 10**6, 2):
        world.commit(step + 1, groups)


ROLES = (evaluate, evaluate, reap, train)
