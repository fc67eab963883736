"""What the trainer may take, and that an update is committed whole, once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from store.store_world import TOKENS, World

from kpipe.errors import StoreError
from kpipe.store import inspect, policies, rollouts, training
from kpipe.store.verify import verify

Query = Callable[[str], list[tuple[Any, ...]]]


def fresh(world: World, max_off_policy_steps: int = 1) -> int:
    return world.db.read(rollouts.counts, world.run.id, max_off_policy_steps)["fresh"]


def test_only_complete_groups_are_taken_whole_and_oldest_first(world: World) -> None:
    first = world.complete_group([[1.0, 2.0], [0.5, None]])
    world.open_group()
    world.complete_group([[None], [None]])
    second = world.complete_group()
    groups = world.take(0)
    assert [group[0].group_id for group in groups] == [first.id, second.id]
    assert [(s.member, s.turn_ordinal, s.reward) for s in groups[0]] == [
        *((0, 0, 1.0), (0, 1, 2.0)),
        *((1, 0, 0.5), (1, 1, None)),
    ]
    assert {s.problem_id for s in groups[0]} == {world.problem_id}
    assert all(s.tokens == TOKENS and s.policy_step == 0 for s in groups[0])
    assert len(world.take(0, limit=1)) == 1
    assert world.take(0, limit=1)[0][0].group_id == first.id


def test_taking_marks_nothing(world: World) -> None:
    world.complete_group()
    assert world.take(0) == world.take(0)
    assert fresh(world) == 1


def test_a_consumed_turn_never_comes_back(world: World, query: Query) -> None:
    world.complete_group()
    groups = world.take(0)
    version = world.commit(1, groups)
    assert (version.step, version.path, version.digest) == (1, "/checkpoints/1", "digest-1")
    assert world.db.read(policies.latest, world.run.id) == version
    assert world.take(1) == []
    assert fresh(world) == 0
    late = world.complete_group()
    assert [group[0].group_id for group in world.take(1)] == [late.id]
    assert query('SELECT DISTINCT step, "return" IS NOT NULL FROM train_sample') in ([(1, 1)], [(1, True)])
    world.db.read(verify)


@pytest.mark.parametrize(("max_off_policy_steps", "taken"), [(0, []), (1, ["young"]), (2, ["old", "young"])])
def test_stale_groups_are_left_out(world: World, max_off_policy_steps: int, taken: list[str]) -> None:
    names = {world.complete_group().id: "old"}
    first = world.commit(1, [world_group(world)])
    names[world.complete_group(policy=first).id] = "young"
    world.commit(2, [world_group(world, first)])
    left = [names[group[0].group_id] for group in world.take(2, max_off_policy_steps)]
    assert left == taken
    assert world.db.read(training.ready, world.run.id, 2, max_off_policy_steps) == len(taken)
    assert fresh(world, max_off_policy_steps) == len(taken)
    stale = world.db.read(training.stale_groups, world.run.id, 2, max_off_policy_steps)
    assert {names[g] for g in stale} == {"old", "young"} - set(taken)


def world_group(world: World, policy: Any = None) -> list[Any]:
    """Samples of a new group that is then trained."""
    group = world.complete_group(policy=policy)
    found = [samples for samples in world.take(10, 10) if samples[0].group_id == group.id]
    return found[0]


def test_one_old_turn_makes_a_group_stale(world: World) -> None:
    _, (member, other) = world.open_group()
    turn = world.suggest(member, 0)
    newer = world.commit(1, [])
    world.settle(turn, 1.0, last=False)
    world.settle(world.suggest(member, 1, newer), 1.0, last=True)
    world.play(other, [1.0], newer)
    assert world.take(1, 0) == []
    assert len(world.take(1, 1)) == 1


def test_stale_groups_are_consumed_as_dropped(world: World, query: Query) -> None:
    old = world.complete_group()
    world.commit(1, [world_group(world)])
    world.commit(2, [], stale=[old.id])
    assert world.take(2, 10) == []
    assert query("SELECT drop_reason, count(*) FROM train_sample WHERE step = 2 GROUP BY drop_reason") == [
        ("stale", 4)
    ]
    assert world.db.read(inspect.rewards_by_step, world.run.id).keys() == {1}
    world.db.read(verify)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_only_the_next_step_is_committed(world: World, step: int, query: Query) -> None:
    world.complete_group()
    groups = world.take(0)
    world.commit(1, groups)
    world.complete_group()
    before = [
        query(f"SELECT count(*) FROM {t}") for t in ("train_step", "train_sample", "policy_version", "event")
    ]
    with pytest.raises(StoreError, match=f"Update {step} cannot be committed"):
        world.db.write(
            training.commit_step, world.run.id, step, world.base.id, ("/again", "d"), "h", {}, [], []
        )
    after = [
        query(f"SELECT count(*) FROM {t}") for t in ("train_step", "train_sample", "policy_version", "event")
    ]
    assert after == before


def test_a_run_without_a_base_policy_commits_nothing(world: World) -> None:
    other = World.make(world.db, "second")
    world.db.write(
        lambda conn: conn.exec_driver_sql(f"DELETE FROM policy_version WHERE run_id = {other.run.id}")
    )
    with pytest.raises(StoreError, match="missing"):
        world.db.write(training.commit_step, other.run.id, 1, world.base.id, ("/x", "d"), "h", {}, [])


def test_a_turn_cannot_be_trained_twice(world: World, query: Query) -> None:
    world.complete_group()
    groups = world.take(0)
    world.commit(1, groups)
    with pytest.raises(StoreError, match="has consumed"):
        world.commit(2, groups)
    assert query("SELECT max(step) FROM train_step") == [(1,)]
    assert query("SELECT max(step) FROM policy_version") == [(1,)]


def test_metrics_come_back(world: World) -> None:
    world.commit(1, [])
    world.commit(2, [])
    assert world.db.read(training.steps, world.run.id) == [(1, {"loss": 0.25}), (2, {"loss": 0.5})]


def test_what_a_run_has_achieved(world: World) -> None:
    world.complete_group([[1.0, 2.0], [None, None]])
    world.commit(1, world.take(0))
    _, (member,) = world.open_group(1)
    world.settle(world.suggest(member), -1.0, last=True, outcome="compile_error")
    world.commit(2, world.take(1))
    world.queued(1)
    assert world.db.read(inspect.rewards_by_step, world.run.id) == {1: [1.0, 2.0], 2: [-1.0]}
    assert world.db.read(inspect.best_speedups_by_step, world.run.id) == {1: [2.0], 2: [0.0]}
    (best,) = world.db.read(inspect.best_kernels, world.run.id)
    assert (best.problem, best.speedup, best.time_ms, best.baseline_ms) == ("square", 2.0, 1.0, 2.0)
    assert world.db.read(inspect.sample_suggestions, world.run.id, 1, 3) == ["unroll the loop"]
    assert world.db.read(inspect.progress, world.run.id) == {
        **{"groups_open": 1, "groups_complete": 2, "groups_failed": 0, "turns": 5},
        **{"queued": 1, "running": 0, "done": 4, "failed": 0},
        **{"step": 2, "metrics": {"loss": 0.5}, "reward_by_step": {1: 1.5, 2: -1.0}},
        **{"mean_reward": -1.0, "mean_best": 0.0, "best": {"square": 2.0}, "coder_usd": 2.0},
    }


def test_progress_of_a_run_that_has_not_begun(world: World) -> None:
    facts = world.db.read(inspect.progress, world.run.id)
    assert (facts["step"], facts["metrics"], facts["mean_reward"], facts["best"]) == (0, {}, None, {})
    assert facts["coder_usd"] == 0.0


def test_suggestions_are_spread_over_the_update(world: World) -> None:
    _, members = world.open_group(6)
    for i, member in enumerate(members):
        suggested = world.suggestion(member)
        said = type(suggested)(
            **{n: getattr(suggested, n) for n in suggested.__slots__} | {"suggestion": f"idea {i}"}
        )
        (turn,) = world.db.write(rollouts.record_suggestions, [said])
        world.settle(turn, 1.0, last=True)
    world.commit(1, world.take(0))
    assert world.db.read(inspect.sample_suggestions, world.run.id, 1, 3) == ["idea 0", "idea 2", "idea 4"]
    assert len(world.db.read(inspect.sample_suggestions, world.run.id, 1, 9)) == 6
