"""A writer to be killed: whole groups, one after the other, then a transaction that never ends."""

from __future__ import annotations

import sys
import time

import sqlalchemy as sa
from store.store_world import World

from kpipe.store import blobs, events
from kpipe.store.database import Database


def hang(conn: sa.Connection, run_id: int) -> None:
    events.log(conn, "unfinished", "run", run_id, "test")
    blobs.put_all(conn, (f"text {i}" * 500 for i in range(500)))
    print("in the middle", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    db = Database.open(sys.argv[1])
    world = World.make(db, "of-the-dead")
    for _ in range(int(sys.argv[2])):
        group = world.complete_group()
        print(group.id, flush=True)
    db.write(hang, world.run.id)
