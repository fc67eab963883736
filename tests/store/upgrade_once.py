"""One of several racers: migrates, and says whether there was anything left to do."""

from __future__ import annotations

import sys

from kpipe.store.database import Database

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    db = Database.connect(sys.argv[1], create=True)
    print(db.upgrade())
    db.close()
