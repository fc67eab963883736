"""What a replay reads and queues, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from store.store_world import GOOD, HARNESS, World

from kpipe.store import events, ledger, policies, queue, rounds, runs, stories, training
from kpipe.store.records import CoderCall

Query = Callable[[str], list[tuple[Any, ...]]]


def test_what_the_trainer_took_comes_again_in_its_order(world: World) -> None:
    world.complete_group()
    stale = world.complete_group()
    world.complete_group(((None, 1.0), (2.0, 0.5)))
    first, _, third = world.take(0)
    world.commit(1, [first, third], stale=[stale.id])
    assert world.db.read(training.taken, world.run.id, 1) == [first, third]
    assert world.db.read(training.taken, world.run.id, 2) == []
    (step,) = world.db.read(training.committed, world.run.id)
    assert (step.step, step.batch_hash, step.metrics) == (1, "hash-1", {"loss": 0.25})
    assert [s.turn_id for s in world.db.read(training.trained, world.run.id, 1)] == [
        1,
        2,
        3,
        4,
        9,
        10,
        11,
        12,
    ]
    assert world.db.read(training.problems_by_step, world.run.id) == {1: {"square"}}
    assert world.db.read(training.problem_names, world.run.id) == {world.problem_id: "square"}


def test_another_run_may_train_on_the_same_turns(world: World, query: Query) -> None:
    world.complete_group()
    groups = world.take(0)
    world.commit(1, groups)
    other = world.db.write(runs.create, "what-if", {}, 7, "0.1.0")
    world.db.write(policies.add, other.id, 0, "/checkpoints/0", "digest-0")
    consumed = query("SELECT id, consumed_step FROM rollout_group")
    World(world.db, other, world.problem_id, world.base, world.worker).commit(1, groups)
    assert world.db.read(training.taken, other.id, 1) == groups
    assert query("SELECT id, consumed_step FROM rollout_group") == consumed
    story = world.db.read(stories.story, 1)
    assert story is not None
    assert [use.run for use in story.turns[0].uses] == ["first", "what-if"]


@pytest.mark.parametrize("same_seeds", [True, False])
def test_a_round_is_queued_beside_the_old_verdicts(world: World, query: Query, same_seeds: bool) -> None:
    world.complete_group()
    world.db.write(
        lambda conn: conn.exec_driver_sql('UPDATE evaluation SET detail = \'{"seeds": {"model": 5}}\'')
    )
    known = world.db.read(rounds.judged_kernels, world.run.id)
    assert [k.id for k in known] == [1, 2, 3, 4]
    before = query("SELECT id, reward, evaluation_id FROM turn ORDER BY id")
    number, jobs = world.db.write(rounds.enqueue, known[1:3], HARNESS, "cpu", same_seeds=same_seeds)
    assert (number, len(jobs)) == (1, 2)
    waited_for = world.queued(1)
    claimed = world.claim(3)
    assert [job.id for job in claimed] == [*waited_for, *jobs]  # whom a collector waits for comes first
    assert [job.seeds for job in claimed] == [None, *[{"model": 5} if same_seeds else None] * 2]
    for job in claimed:
        world.db.write(queue.report, job.id, job.lease, GOOD)
    after = world.db.read(rounds.kernels, jobs)
    assert [after[job].kernel_sha for job in jobs] == [k.kernel_sha for k in known[1:3]]
    assert query("SELECT id, reward, evaluation_id FROM turn ORDER BY id")[:4] == before
    assert world.db.write(rounds.enqueue, known[:1], HARNESS, "cpu", same_seeds=False)[0] == 2


def test_events_are_found_by_subject(world: World) -> None:
    for number in (1, 2):
        world.db.write(events.log, "lineage", "run", number, "replay", {"from": number})
    assert world.db.read(events.details, "lineage", "run", 2) == [{"from": 2}]
    assert world.db.read(events.details, "lineage", "group", 2) == []


def test_a_paid_answer_without_a_turn_is_kept(world: World) -> None:
    call = CoderCall("key", "gpt", "a request", "a reply", None, 10, 20, 0.5, 1.5, 1)
    world.db.write(ledger.keep, call)
    assert world.db.read(ledger.cached_call, "key") == call
