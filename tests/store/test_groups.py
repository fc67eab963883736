"""Groups, trajectories and turns: resumed anywhere, nothing is written twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from store.store_world import DEVICE, EXPIRED, GOOD, LEASE_S, TOKENS, World, call

from kpipe.errors import LeaseLost
from kpipe.store import queue, rollouts
from kpipe.store.verify import verify

Query = Callable[[str], list[tuple[Any, ...]]]


def counts(world: World) -> dict[str, int]:
    return world.db.read(rollouts.counts, world.run.id, 1)


def test_groups_are_numbered_run_by_run(world: World) -> None:
    other = World.make(world.db, "second")
    assert [world.open_group()[0].ordinal for _ in range(3)] == [0, 1, 2]
    assert other.open_group()[0].ordinal == 0
    assert world.db.read(rollouts.next_ordinal, world.run.id) == 3
    _, members = world.open_group(size=4)
    assert [(t.member, t.state) for t in members] == [(m, "open") for m in range(4)]


def test_groups_opened_at_once_get_different_numbers(world: World) -> None:
    threads = [threading.Thread(target=world.open_group) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.db.read(rollouts.next_ordinal, world.run.id) == 8
    assert counts(world)["open"] == 8


def test_a_turn_goes_all_the_way(world: World) -> None:
    _, (first, second) = world.open_group()
    turn = world.suggest(first)
    (stored,) = world.db.read(rollouts.turns, first.id)
    assert (stored.id, stored.state, stored.suggestion) == (turn, "suggested", "unroll the loop")
    assert (stored.kernel, stored.finish_reason, stored.evidence) == (None, TOKENS.finish_reason, "")

    evaluation = world.implement(turn, "a kernel", call())
    (stored,) = world.db.read(rollouts.turns, first.id)
    assert (stored.state, stored.kernel, stored.evaluation_id) == ("evaluating", "a kernel", evaluation)

    (job,) = world.claim()
    world.db.write(queue.report, job.id, job.lease, GOOD)
    world.settle(turn, 2.3, last=True)
    (stored,) = world.db.read(rollouts.turns, first.id)
    assert (stored.state, stored.reward, stored.outcome, stored.fault) == ("settled", 2.3, "correct", None)
    assert (stored.speedup, stored.evidence) == (GOOD.speedup, GOOD.log)
    assert world.db.read(rollouts.turns, second.id) == []
    assert counts(world) == {"open": 1, "complete": 0, "failed": 0, "fresh": 0, "trainer_step": 0}


def test_a_suggestion_is_recorded_once(world: World, query: Query) -> None:
    _, (member, other) = world.open_group()
    world.suggest(member)
    before = query("SELECT count(*) FROM blob")
    with pytest.raises(LeaseLost):
        world.db.write(rollouts.record_suggestions, [world.suggestion(other), world.suggestion(member)])
    assert query("SELECT count(*) FROM turn") == [(1,)]
    assert query("SELECT count(*) FROM tokens") == [(1,)]
    assert query("SELECT count(*) FROM blob") == before


def test_suggestions_of_a_batch_keep_their_order(world: World) -> None:
    _, members = world.open_group(5)
    ids = world.db.write(rollouts.record_suggestions, [world.suggestion(t) for t in reversed(members)])
    assert [world.db.read(rollouts.turns, t.id)[0].id for t in reversed(members)] == ids


def test_a_kernel_is_recorded_once(world: World, query: Query) -> None:
    _, (member, _) = world.open_group()
    turn = world.suggest(member)
    evaluation = world.implement(turn, "a kernel", call())
    assert world.implement(turn, "a kernel", call()) == evaluation
    with pytest.raises(LeaseLost):
        world.implement(turn, "another kernel", call("another key"))
    assert query("SELECT count(*) FROM evaluation") == [(1,)]
    assert query("SELECT key_sha, usd, attempts FROM coder_call") == [("key", 0.5, 1)]
    world.db.read(verify)


def test_a_turn_is_settled_once(world: World, query: Query) -> None:
    _, (member, _) = world.open_group()
    (turn,) = world.play(member, [1.5])
    world.settle(turn, 99.0, last=True)
    assert query("SELECT reward FROM turn") == [(1.5,)]
    assert query("SELECT state FROM trajectory ORDER BY member") == [("closed",), ("open",)]


def test_a_crash_between_settling_and_closing_cannot_happen(world: World, query: Query) -> None:
    """Reward and end of the trajectory are one transaction: a reward that cannot be stored closes nothing."""
    _, (member, _) = world.open_group(2)
    turn = world.suggest(member)
    world.implement(turn, "a kernel")
    with pytest.raises(IntegrityError):
        world.db.write(rollouts.settle, turn, reward=1.0, outcome="correct", fault="infra", last=True)
    assert query("SELECT state FROM turn") == [("evaluating",)]
    assert query("SELECT DISTINCT state FROM trajectory") == [("open",)]


def test_the_last_trajectory_completes_the_group(world: World, query: Query) -> None:
    group, (first, second) = world.open_group()
    world.play(first, [1.0, 0.5])
    assert counts(world)["complete"] == 0
    world.play(second, [0.0, None])
    assert counts(world) == {"open": 0, "complete": 1, "failed": 0, "fresh": 1, "trainer_step": 0}
    assert query("SELECT kind, subject_id FROM event WHERE kind LIKE 'group%'") == [
        ("group_complete", group.id)
    ]


def test_a_group_without_any_reward_has_failed(world: World) -> None:
    world.complete_group([[None], [None]])
    assert counts(world) == {"open": 0, "complete": 0, "failed": 1, "fresh": 0, "trainer_step": 0}


def test_members_that_end_at_once_complete_the_group_once(world: World, query: Query) -> None:
    for _ in range(10):
        _, members = world.open_group(4)
        turns = [world.suggest(t) for t in members]
        for turn in turns:
            world.implement(turn, f"kernel {turn}")
            (job,) = world.claim()
            world.db.write(queue.report, job.id, job.lease, GOOD)
        threads = [threading.Thread(target=world.settle, args=(t, 1.0), kwargs={"last": True}) for t in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts(world)["complete"] == 10
    assert query("SELECT count(*) FROM event WHERE kind = 'group_complete'") == [(10,)]


def test_a_turn_without_a_kernel_is_a_fault_with_its_call(world: World, query: Query) -> None:
    _, (member, _) = world.open_group()
    turn = world.suggest(member)
    failed = call(reply=None)
    world.db.write(
        rollouts.settle, turn, reward=None, outcome=None, fault="coder_failed", call=failed, last=False
    )
    assert query("SELECT fault, reward FROM turn") == [("coder_failed", None)]
    assert query("SELECT error, reply_sha FROM coder_call") == [("overloaded", None)]


def test_an_unchanged_kernel_is_kept_without_an_evaluation(world: World, query: Query) -> None:
    _, (member, _) = world.open_group()
    turn = world.suggest(member)
    world.db.write(
        rollouts.settle,
        turn,
        reward=0.0,
        outcome="unchanged",
        fault=None,
        kernel="same",
        call=call(),
        last=False,
    )
    (stored,) = world.db.read(rollouts.turns, member.id)
    assert (stored.kernel, stored.outcome, stored.evaluation_id) == ("same", "unchanged", None)
    assert query("SELECT count(*) FROM evaluation") == [(0,)]


def test_a_silent_collector_loses_its_group(world: World, query: Query) -> None:
    group, members = world.open_group(lease_s=EXPIRED)
    world.open_group()
    resumed = world.db.write(rollouts.claim_group, world.run.id, LEASE_S)
    assert resumed is not None
    assert (resumed.id, resumed.ordinal, resumed.device, resumed.size) == (group.id, 0, DEVICE, 2)
    assert resumed.lease != group.lease
    assert world.db.write(rollouts.claim_group, world.run.id, LEASE_S) is None
    with pytest.raises(LeaseLost):
        world.db.write(rollouts.renew_group, group.id, group.lease, LEASE_S)
    world.db.write(rollouts.renew_group, resumed.id, resumed.lease, LEASE_S)
    assert query("SELECT subject_id FROM event WHERE kind = 'group_resumed'") == [(members[0].group_id,)]


def test_a_draining_collector_lets_go_of_its_group(world: World) -> None:
    group, _ = world.open_group()
    world.db.write(rollouts.renew_group, group.id, group.lease, 0.0)
    resumed = world.db.write(rollouts.claim_group, world.run.id, LEASE_S)
    assert resumed is not None
    assert resumed.id == group.id


def test_a_finished_group_needs_no_lease(world: World) -> None:
    group = world.complete_group()
    world.db.write(rollouts.renew_group, group.id, group.lease, LEASE_S)
    assert world.db.write(rollouts.claim_group, world.run.id, LEASE_S) is None


def test_groups_of_another_run_are_left_alone(world: World) -> None:
    world.open_group(lease_s=EXPIRED)
    other = World.make(world.db, "second")
    assert world.db.write(rollouts.claim_group, other.run.id, LEASE_S) is None


def test_an_answered_call_is_found_again_and_never_paid_twice(world: World, query: Query) -> None:
    _, members = world.open_group(3)
    assert world.db.read(rollouts.cached_call, "key") is None
    world.implement(world.suggest(members[0]), "a kernel", call())
    cached = world.db.read(rollouts.cached_call, "key")
    assert cached == call()
    world.implement(world.suggest(members[1]), "a kernel", cached)
    assert world.db.read(rollouts.call_usd, world.run.id) == 0.5
    assert query("SELECT count(DISTINCT coder_call_id), count(*) FROM turn") == [(1, 2)]


def test_a_failed_call_is_no_answer_but_is_paid_for(world: World) -> None:
    _, members = world.open_group(2)
    settle = {"reward": None, "outcome": None, "fault": "coder_failed", "last": False}
    world.db.write(rollouts.settle, world.suggest(members[0]), call=call(reply=None, usd=0.25), **settle)
    assert world.db.read(rollouts.cached_call, "key") is None
    world.implement(world.suggest(members[1]), "a kernel", call())
    answered = world.db.read(rollouts.cached_call, "key")
    assert answered is not None
    assert (answered.reply, answered.error, answered.usd, answered.attempts) == ("a reply", None, 0.75, 2)
    assert world.db.read(rollouts.call_usd, world.run.id) == 0.75


def test_a_second_answer_to_the_same_request_is_a_row_of_its_own(world: World, query: Query) -> None:
    """Two processes asked the same at the same moment: both answers were paid, and each made its kernel."""
    _, members = world.open_group(3)
    first, second, third = map(world.suggest, members)
    world.implement(first, "kernel one", call(reply="reply one"))
    for _ in range(2):  # the second time as after a kill in between
        world.implement(second, "kernel two", call(reply="reply two"))
    world.implement(third, "kernel one", world.db.read(rollouts.cached_call, "key"))
    paid = query("SELECT sum(usd), sum(attempts), count(*) FROM coder_call")
    assert paid == [(1.0, 2, 2)]
    said = query(
        "SELECT b.body FROM turn t JOIN coder_call c ON c.id = t.coder_call_id"
        " JOIN blob b ON b.sha = c.reply_sha ORDER BY t.id"
    )
    assert len(said) == 3
    assert said[0] == said[2] != said[1]
    world.db.read(verify)
