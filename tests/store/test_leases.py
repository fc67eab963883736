"""A lease that ran out is worth nothing, whatever its holder believes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from store.store_world import EXPIRED, GOOD, LEASE_S, World

from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import LeaseLost
from kpipe.store import queue, rollouts
from kpipe.store.records import EvaluationJob

Query = Callable[[str], list[tuple[Any, ...]]]
BAD = Verdict(Outcome.CRASH, log="of the stalled worker")


def assert_powerless(world: World, stalled: EvaluationJob) -> None:
    with pytest.raises(LeaseLost):
        world.db.write(queue.report, stalled.id, stalled.lease, BAD)
    with pytest.raises(LeaseLost):
        world.db.write(queue.give_back, stalled.id, stalled.lease, reason="?", delay_s=0.0, max_attempts=3)
    assert world.db.write(queue.renew, [(stalled.id, stalled.lease)], LEASE_S) == [stalled.id]


def test_a_stalled_worker_can_change_nothing(world: World, query: Query) -> None:
    (evaluation,) = world.queued(1)
    (stalled,) = world.claim(lease_s=EXPIRED)
    assert_powerless(world, stalled)  # although nobody else has noticed yet

    assert world.db.write(queue.reap, 3) == 1
    assert_powerless(world, stalled)

    (job,) = world.claim()
    assert (job.id, job.attempt) == (evaluation, 2)
    assert_powerless(world, stalled)

    world.db.write(queue.report, job.id, job.lease, GOOD)
    assert_powerless(world, stalled)
    assert world.db.read(rollouts.evaluations, [evaluation])[evaluation].verdict == GOOD
    assert query("SELECT count(*) FROM finding") == [(len(GOOD.findings),)]
    assert query("SELECT count(*) FROM blob WHERE body = 'of the stalled worker'") == [(0,)]


def test_a_report_is_written_once(world: World) -> None:
    world.queued(1)
    (job,) = world.claim()
    world.db.write(queue.report, job.id, job.lease, GOOD)
    assert_powerless(world, job)


def test_renewing_keeps_a_job(world: World) -> None:
    a, b, c = world.queued(3)
    held = {job.id: job for job in world.claim(limit=2)}
    assert set(held) == {a, b}
    leases = [(job.id, job.lease) for job in held.values()]
    assert world.db.write(queue.renew, [*leases, (c, "a guess")], LEASE_S) == [c]
    assert world.db.write(queue.renew, leases, EXPIRED) == []
    assert world.db.write(queue.reap, 3) == 2
    assert world.db.write(queue.renew, leases, LEASE_S) == [a, b]


def test_a_job_that_keeps_killing_workers_is_failed(world: World, query: Query) -> None:
    (evaluation,) = world.queued(1)
    for attempt in (1, 2, 3):
        (job,) = world.claim(lease_s=EXPIRED)
        assert job.attempt == attempt
        assert world.db.write(queue.reap, 3) == 1
    assert world.claim() == []
    result = world.db.read(rollouts.evaluations, [evaluation])[evaluation]
    assert result.state == "failed"
    assert result.verdict is not None
    assert result.verdict.outcome is Outcome.INFRA
    kinds = [kind for (kind,) in query("SELECT kind FROM event WHERE subject = 'evaluation' ORDER BY id")]
    assert kinds == ["lease_lost"] * 3 + ["evaluation_failed"]
    assert world.db.write(queue.reap, 3) == 0


def test_reaping_leaves_the_living_alone(world: World) -> None:
    world.queued(2)
    (living,) = world.claim()
    (dead,) = world.claim(lease_s=EXPIRED)
    assert world.db.write(queue.reap, 3) == 1
    assert world.claim()[0].id == dead.id
    world.db.write(queue.report, living.id, living.lease, GOOD)


def test_a_machine_that_fails_again_and_again_fails_the_job(world: World) -> None:
    (evaluation,) = world.queued(1)
    for attempt in (1, 2, 3):
        (job,) = world.claim()
        assert job.attempt == attempt
        world.db.write(queue.give_back, job.id, job.lease, reason="no memory", delay_s=0.0, max_attempts=3)
    result = world.db.read(rollouts.evaluations, [evaluation])[evaluation]
    assert result.state == "failed"
    assert result.verdict is not None
    assert result.verdict.detail == {"reason": "no memory"}


def test_crashes_and_failures_are_counted_apart(world: World, query: Query) -> None:
    world.queued(1)
    for _ in range(2):
        (job,) = world.claim()
        world.db.write(queue.give_back, job.id, job.lease, reason="no memory", delay_s=0.0, max_attempts=3)
        world.claim(lease_s=EXPIRED)
        world.db.write(queue.reap, 3)
    assert query("SELECT state, attempt, failures FROM evaluation") == [("queued", 2, 2)]


def test_a_job_that_is_given_back_waits_for_its_time(world: World) -> None:
    world.queued(1)
    (job,) = world.claim()
    world.db.write(queue.give_back, job.id, job.lease, reason="busy", delay_s=3600.0, max_attempts=3)
    assert world.claim() == []
    assert world.db.read(queue.depth) == {"queued": 1, "running": 0}


def test_giving_back_on_shutdown_does_not_count(world: World) -> None:
    world.queued(1)
    for _ in range(5):
        (job,) = world.claim()
        assert job.attempt == 1
        world.db.write(queue.give_back, job.id, job.lease, reason="drain", delay_s=0.0, max_attempts=None)


def test_an_infra_verdict_fails_the_job(world: World, query: Query) -> None:
    (evaluation,) = world.queued(1)
    (job,) = world.claim()
    world.db.write(queue.report, job.id, job.lease, Verdict(Outcome.INFRA, log="the device is gone"))
    assert world.db.read(rollouts.evaluations, [evaluation])[evaluation].state == "failed"
    assert query("SELECT count(*) FROM event WHERE kind = 'evaluation_failed'") == [(1,)]
