"""Transactions: all or nothing, from threads and event loops, whatever dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer
from store.marks import only_postgres
from store.processes import start, wait_for
from store.store_world import World

from kpipe.errors import StoreError, StoreLost
from kpipe.store import blobs, policies, rollouts
from kpipe.store.database import Database
from kpipe.store.verify import verify

Query = Callable[[str], list[tuple[Any, ...]]]


def count_blobs(conn: sa.Connection) -> int:
    return int(conn.execute(sa.text("SELECT count(*) FROM blob")).scalar_one())


def test_what_raises_is_undone(database: Database) -> None:
    def half(conn: sa.Connection) -> None:
        blobs.put(conn, "half")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        database.write(half)
    assert database.read(count_blobs) == 0
    database.write(blobs.put, "whole")
    assert database.read(count_blobs) == 1


async def test_an_event_loop_is_not_blocked(database: Database) -> None:
    """A write that waits for the loop itself: it would never end if it ran on the loop."""
    turning, loop = threading.Event(), asyncio.get_running_loop()

    def wait_for_the_loop(conn: sa.Connection) -> str:
        loop.call_soon_threadsafe(turning.set)
        assert turning.wait(60)
        return blobs.put(conn, "text")

    sha = await database.awrite(wait_for_the_loop)
    assert await database.aread(blobs.get, sha) == "text"
    with pytest.raises(StoreError, match="No text"):
        await database.aread(blobs.get, "0" * 64)


async def test_many_writes_at_once_all_arrive(database: Database) -> None:
    await asyncio.gather(*(database.awrite(blobs.put, f"text {i}") for i in range(100)))
    assert await database.aread(count_blobs) == 100


@pytest.mark.parametrize("groups", [0, 2])
def test_a_writer_killed_in_mid_transaction(
    database: Database, database_url: str, query: Query, groups: int
) -> None:
    writer = start("die_writing.py", database_url, str(groups))
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(groups)]
    wait_for(writer, "in the middle\n")
    writer.kill()
    writer.wait()
    world = World.make(database, "of-the-living")
    world.complete_group()
    facts = database.read(verify)
    assert facts["turns"] == 4 * (groups + 1)
    assert [i for (i,) in query("SELECT id FROM rollout_group ORDER BY id")][:-1] == acknowledged
    assert query("SELECT count(*) FROM event WHERE kind = 'unfinished'") == [(0,)]


@pytest.mark.parametrize("killed_after", [1, 3, 7])
def test_a_writer_killed_anywhere_loses_no_acknowledged_group(
    database: Database, database_url: str, query: Query, killed_after: int
) -> None:
    writer = start("die_writing.py", database_url, "1000000")
    assert writer.stdout is not None
    acknowledged = {int(writer.stdout.readline()) for _ in range(killed_after)}
    writer.kill()
    acknowledged |= {int(line) for line in writer.communicate()[0].split()}
    stored = {i for (i,) in query("SELECT id FROM rollout_group WHERE state = 'complete'")}
    assert acknowledged <= stored
    assert len(stored) <= len(acknowledged) + 1
    database.read(verify)


def test_a_base_policy_made_twice_is_one(world: World) -> None:
    again = world.db.write(policies.add, world.run.id, 0, "/elsewhere", "other digest")
    assert again == world.base
    assert world.db.read(policies.list_, world.run.id) == [world.base]
    assert world.db.read(policies.get, world.run.id, 1) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kpipe.db", "no database URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///kpipe.db?mode=ro", "no options"),
        ("mysql://host/kpipe", "does not speak mysql"),
        ("sqlite://tmp/x.db", "names a host"),
        ("postgresql://u:s3cret@h:abc/db", r"'...@h:abc/db' is no database URL"),
        ("postgresql://u:s3cret@[::1/db", "no database URL"),
        ("postgresql//u:s3cret@h/db", r"'...@h/db' is no database URL"),
        ("postgresql//h/db?password=s3cret", "no database URL"),
        ("sqlite:///kpipe.db?password=s3cret", "no options"),
        ("postgresql://u:one@s3cret@h/db", "more than one '@'"),
    ],
)
def test_addresses_that_are_none(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        Database.open(url)
    assert "sqlite:///PATH" in str(caught.value) or "%40" in caught.value.fix
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:s3cret@localhost:1/db?foo=bar", "the option 'foo'"),
        ("postgresql://u:s3cret@localhost:1/db?autocommit=1", "the option 'autocommit'"),
        ("postgresql://localhost:1/db?password=s3cret&sslmode=disable&sslmode=allow", "more than once"),
        ("postgresql://u:s3cret@localhost:1/db?connect_timeout=abc", "connect_timeout: 'abc'"),
        ("postgresql://u:s3cret@/db?host=localhost&port=abc", "is no address"),
        ("postgresql://u@localhost:1/db?password=s3cret", "cannot be reached"),
        ("postgresql://u@localhost:1/db?sslpassword=s3cret&sslmode=disable", "cannot be reached"),
    ],
)
def test_addresses_that_lead_nowhere(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        Database.open(url)
    assert caught.value.fix
    assert "s3cret" not in str(caught.value)


@pytest.mark.postgres
def test_a_postgres_that_cannot_be_reached(postgres: PostgresServer) -> None:
    for url, words in (
        (postgres.url("nobodys"), "nobodys"),
        (postgres.url("postgres").replace("kpipe@", "stranger:secret@"), "stranger"),
        ("postgresql://kpipe@localhost:1/kpipe", "cannot be reached"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            Database.open(url)
        assert "secret" not in str(caught.value)


@only_postgres
def test_a_restarted_postgres_costs_no_transaction(postgres: PostgresServer, database: Database) -> None:
    database.write(blobs.put, "before")
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'kpipe'"
    postgres.sql(f"SELECT pg_terminate_backend(pid) {others}")
    database.write(blobs.put, "after")
    assert database.read(count_blobs) == 2


def cut(postgres: PostgresServer, conn: sa.Connection) -> None:
    """Take the server away from this connection."""
    pid = conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    postgres.sql(f"SELECT pg_terminate_backend({pid}, 10000)")


@only_postgres
def test_a_transaction_that_the_server_left_is_run_again(
    postgres: PostgresServer, database: Database
) -> None:
    tries = []

    def write(conn: sa.Connection) -> None:
        tries.append(blobs.put(conn, "half"))
        if len(tries) == 1:
            cut(postgres, conn)
        blobs.put(conn, "whole")

    database.write(write)
    assert len(tries) == 2
    assert database.read(count_blobs) == 2


@only_postgres
def test_a_server_that_is_away_is_waited_for(postgres: PostgresServer, database: Database) -> None:
    """It takes no connections for a while, as in a restart."""
    name = database.name.rpartition("/")[2].partition("?")[0]
    postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    postgres.sql(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'")
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(database.read(count_blobs)))
    asking.start()
    try:
        with pytest.raises(StoreError, match="cannot be reached"):
            Database.open(database.name)  # a command that starts now is told at once
        assert answers == []
    finally:
        postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    asking.join(60)
    assert answers == [0]


@only_postgres
def test_a_server_that_leaves_in_a_commit_leaves_a_doubt(
    postgres: PostgresServer, database: Database
) -> None:
    tries = []

    def write(conn: sa.Connection) -> None:
        tries.append(blobs.put(conn, "who knows"))
        cut(postgres, conn)

    with pytest.raises(StoreLost, match="while something was written") as caught:
        database.write(write)
    assert caught.value.exit_code == 75
    assert len(tries) == 1
    assert database.read(count_blobs) == 0


@only_postgres
def test_a_deadlock_is_run_again(database: Database) -> None:
    """Two transactions that lock two rows in opposite orders: Postgres undoes one, which then runs again."""
    World.make(database, "a")
    World.make(database, "b")
    meet, tries = threading.Barrier(2), []
    more = sa.text("UPDATE run SET seed = seed + 1 WHERE name = :name")

    def lock(conn: sa.Connection, first: str, second: str) -> None:
        tries.append(first)
        conn.execute(more, {"name": first})
        if len(tries) <= 2:
            meet.wait(60)
        conn.execute(more, {"name": second})

    threads = [
        threading.Thread(target=database.write, args=(lock, *names)) for names in (("a", "b"), ("b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == 3
    assert database.read(lambda c: set(c.execute(sa.text("SELECT seed FROM run")).scalars())) == {9}


def test_writers_that_store_the_same_texts_never_wait_in_a_circle(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kpipe.store.database.TRIES", 1)
    world = World.make(database)
    texts = [f"text {i}" for i in range(50)]
    errors: list[BaseException] = []

    def write(order: list[str]) -> None:
        try:
            for _ in range(5):
                _, members = world.open_group(2)
                database.write(blobs.put_all, order)
                database.write(rollouts.record_suggestions, [world.suggestion(t) for t in members])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(texts[::step],)) for step in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
