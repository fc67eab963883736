"""Which suggestions are worth imitating."""

from __future__ import annotations

import sqlalchemy as sa
from store.store_world import World

from kpipe.store import suggestions


def played(world: World, rewards: list[list[float | None]]) -> list[int]:
    """Turns of one complete group, by member and turn."""
    world.complete_group(rewards)
    return [s.turn_id for s in world.take(0)[-1]]


def change(world: World, sql: str, **values: object) -> None:
    world.db.write(lambda conn: conn.execute(sa.text(sql), values))


def rename(world: World, turn: int, suggestion: str) -> None:
    change(world, "UPDATE turn SET suggestion = :said WHERE id = :turn", said=suggestion, turn=turn)


def commit(world: World, advantages: dict[int, float | None]) -> None:
    """An update of everything, with these advantages in place of the world's."""
    world.commit(1, world.take(0), drop={t: "zero_spread" for t, a in advantages.items() if a is None})
    for turn, advantage in advantages.items():
        sql = "UPDATE train_sample SET advantage = :advantage WHERE turn_id = :turn"
        change(world, sql, advantage=advantage, turn=turn)


def test_by_advantage_the_best_trained_turns_come_first(world: World) -> None:
    turns = played(world, [[1.0, 2.0], [0.5, 3.0]])
    commit(world, dict(zip(turns, [0.25, None, -1.0, 2.0], strict=True)))
    for number, turn in enumerate(turns):
        rename(world, turn, f"say {number}")
    found = world.db.read(suggestions.best, world.run.id, "advantage", 10)
    assert [(e.suggestion, e.value) for e in found] == [("say 3", 2.0), ("say 0", 0.25)]
    assert all(e.prompt.startswith("prompt ") for e in found)
    assert len(world.db.read(suggestions.best, world.run.id, "advantage", 1)) == 1


def test_of_another_run_nothing_is_taken(world: World) -> None:
    commit(world, dict.fromkeys(played(world, [[1.0], [2.0]]), 1.0))
    other = World.make(world.db, "other")
    assert world.db.read(suggestions.best, other.run.id, "advantage", 10) == []
    assert world.db.read(suggestions.best, other.run.id, "speedup", 10) == []


def test_by_speedup_only_correct_kernels_count_and_what_was_cut_does_not(world: World) -> None:
    """World's verdicts are twice as fast; the wrong one and the cut one stay away."""
    good, wrong, cut = played(world, [[1.0], [-0.5], [2.0]])
    for number, turn in enumerate((good, wrong, cut)):
        rename(world, turn, f"say {number}")
    change(world, "UPDATE turn SET outcome = 'wrong_value' WHERE id = :turn", turn=wrong)
    change(world, "UPDATE tokens SET finish_reason = 'length' WHERE turn_id = :turn", turn=cut)
    found = world.db.read(suggestions.best, world.run.id, "speedup", 10)
    assert [(e.suggestion, e.value) for e in found] == [("say 0", 2.0)]


def test_the_same_pair_is_given_once(world: World) -> None:
    first, second = played(world, [[1.0], [2.0]])
    change(world, "UPDATE turn SET prompt_sha = (SELECT min(prompt_sha) FROM turn)")
    commit(world, {first: 1.0, second: 2.0})
    assert [e.value for e in world.db.read(suggestions.best, world.run.id, "advantage", 10)] == [2.0]
