"""A database in which everything has happened that can: for copies, exports and what is deleted."""

from __future__ import annotations

from store.store_world import World, call

from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import queue, rollouts
from kpipe.store.database import Database
from kpipe.store.records import SuggestedTurn, TokenRecord

ODD = TokenRecord([2**31 - 1, 0], [-1, 7], [-0.0, -1e-38], {"seed": [1, 2**53], "ü": None}, "length")


def lived_in(db: Database) -> World:
    """Two trained updates, a group that waits, a failed and an open one; texts, numbers and JSON that are odd."""
    world = World.make(db)
    for step in (1, 2):
        world.complete_group()
        world.commit(step, world.take(step - 1))
    world.complete_group()
    world.complete_group([[None]])
    _, members = world.open_group()
    odd = SuggestedTurn(
        members[0].id, 0, world.base.id, "a\0 prompt \u2603", "template", 'say "\\n"\r\n', ODD
    )
    (turn,) = db.write(rollouts.record_suggestions, [odd])
    world.implement(turn, "kernel \U0001f40c", call("odd", reply=None))
    (job,) = world.claim()
    db.write(queue.report, job.id, job.lease, Verdict(Outcome.CRASH, detail={"x": 0.1, "n": 1.0}, log="boom"))
    db.write(rollouts.settle, turn, reward=-0.0, outcome="crash", fault=None, last=False)
    world.implement(world.suggest(members[1]), "waits")
    world.claim()
    return world
