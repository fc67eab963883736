"""A worker process: claims, renews and reports until nothing waits; prints what it claimed."""

from __future__ import annotations

import sys

from store.store_world import DEVICE, GOOD, LEASE_S

from kpipe.store import queue
from kpipe.store.database import Database


def main(url: str, worker: int) -> None:
    db = Database.open(url)
    print("ready", flush=True)
    sys.stdin.readline()
    while jobs := db.write(queue.claim, worker, DEVICE, LEASE_S, 2):
        for job in jobs:
            print(job.id, flush=True)
            assert db.write(queue.renew, [(job.id, job.lease)], LEASE_S) == []
            db.write(queue.report, job.id, job.lease, GOOD)
    db.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
