"""How often problems are solved, and that what is held out is never trained on."""

from __future__ import annotations

from store.store_world import DEVICE, HARNESS, LEASE_S, World

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import catalog, queue, rollouts, training


def played(world: World, problem_id: int, speedups: list[float | None]) -> int:
    """A complete group of one trajectory whose kernels are this fast; None is a wrong answer."""
    group = world.db.write(rollouts.open_group, world.run.id, problem_id, DEVICE, 1, LEASE_S)
    (member,) = world.db.read(rollouts.trajectories, group.id)
    for ordinal, speedup in enumerate(speedups):
        turn = world.suggest(member, ordinal)
        world.db.write(
            rollouts.record_kernel, turn, None, f"kernel {turn}",
            problem_id=problem_id, harness=HARNESS, device=DEVICE,
        )  # fmt: skip
        outcome = Outcome.WRONG_VALUE if speedup is None else Outcome.CORRECT
        (job,) = world.claim()
        world.db.write(queue.report, job.id, job.lease, Verdict(outcome, 1.0, speedup, speedup))
        world.settle(turn, 1.0, last=ordinal == len(speedups) - 1, outcome=outcome.value)
    return group.id


def test_solved_means_correct_and_faster_than_the_reference(world: World) -> None:
    other, _ = world.db.write(catalog.add, Problem("suite", 1, "other", "train", "class Model: pass"))
    played(world, world.problem_id, [2.0, None, 0.5])
    played(world, other, [None, None])
    played(world, other, [3.0])
    world.complete_group([[None]])
    assert world.db.read(rollouts.solved, world.run.id, 100) == {world.problem_id: (1, 3), other: (1, 3)}
    assert world.db.read(rollouts.solved, world.run.id, 2) == {other: (1, 1)}
    assert world.db.read(rollouts.solved, world.run.id + 1, 100) == {}


def test_held_out_problems_are_never_trained_on(world: World) -> None:
    held, _ = world.db.write(catalog.add, Problem("suite", 1, "held", "heldout", "class Model: 1"))
    played(world, held, [2.0, 3.0])
    mine = played(world, world.problem_id, [2.0, 3.0])
    assert [samples[0].group_id for samples in world.take(0)] == [mine]
    assert world.db.read(training.ready, world.run.id, 0, 1) == 1
