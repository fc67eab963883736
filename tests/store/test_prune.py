"""Deleted runs are gone with all that was only theirs, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.lived_in import lived_in
from store.store_world import EXPIRED, GOOD, World, call

from kpipe.errors import StoreError
from kpipe.store import events, policies, portable, prune, queue, rollouts, runs
from kpipe.store.database import Database
from kpipe.store.models import metadata
from kpipe.store.verify import verify

Query = Callable[[str], list[tuple[object, ...]]]


def rows(db: Database) -> dict[str, int]:
    return {t: sum(map(len, db.read(lambda c, t: list(portable.rows(c, t)), t))) for t in portable.tables()}


def content(db: Database) -> dict[str, list[portable.Row]]:
    """All rows by table; journal, heartbeats and what a device was measured to do are everybody's."""
    kept = [t for t in portable.tables() if t not in ("event", "worker", "baseline")]
    return {t: [r for b in db.read(lambda c, t: list(portable.rows(c, t)), t) for r in b] for t in kept}


def planned(db: Database, *names: str) -> prune.Plan:
    return db.read(prune.plan, names)


def database_says(db: Database, statement: str) -> None:
    db.write(lambda conn: conn.exec_driver_sql(statement))


def at_rest(db: Database) -> World:
    """`lived_in`, and everybody who held something went home."""
    world = lived_in(db)
    for statement in _EXPIRE.values():
        database_says(db, statement)
    return world


_EXPIRE = {
    "rollout_group": "UPDATE rollout_group SET lease_until = created_at WHERE lease IS NOT NULL",
    "evaluation": "UPDATE evaluation SET lease_until = queued_at WHERE lease IS NOT NULL",
}


def test_the_other_run_is_as_if_the_first_had_never_been(database: Database) -> None:
    second = World.make(database, "second")
    second.complete_group()
    second.commit(1, second.take(0))
    before = content(database)
    at_rest(database)
    plan = planned(database, "first")
    at_first = rows(database)
    gone = prune.prune(database, list(plan.runs))
    assert content(database) == before
    database.read(verify)
    left = rows(database)
    went = {table: n - left[table] for table, n in at_first.items() if n > left[table]}
    assert {**went, "event": 0} == {**gone, "event": 0}


@pytest.mark.parametrize("size", [1, 2, 50])
def test_in_batches_of_any_size(database: Database, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "GROUPS", size)
    monkeypatch.setattr(prune, "TEXTS", size)
    at_rest(database)
    prune.prune(database, list(planned(database, "first").runs))
    left = {table: n for table, n in rows(database).items() if n}
    assert left == {"blob": 1, "problem": 1, "worker": 1, "baseline": 1, "event": 1}
    database.read(verify)


def test_a_rehearsal_counts_the_same_and_changes_nothing(database: Database) -> None:
    at_rest(database)
    before = database.read(portable.digest)
    plan = planned(database, "first")
    said = prune.rehearse(database, list(plan.runs))
    assert database.read(portable.digest) == before
    assert prune.prune(database, list(plan.runs)) == said
    assert said["turn"] == 15


def test_what_two_runs_share_stays(database: Database, query: Query) -> None:
    first, second = World.make(database), World.make(database, "second")
    for world in (first, second):
        _, (member,) = world.open_group(1)
        turn = world.suggest(member)
        world.implement(turn, "the same kernel", call("the same key"))
        for job in world.claim():
            database.write(queue.report, job.id, job.lease, GOOD)
        world.settle(turn, 1.0, last=True)
    gone = prune.prune(database, list(planned(database, "first").runs))
    assert gone["evaluation"] == gone["coder_call"] == gone["finding"] == 0
    assert query("SELECT count(*) FROM evaluation") == query("SELECT count(*) FROM coder_call") == [(1,)]
    database.read(verify)
    prune.prune(database, list(planned(database, "second").runs))
    assert query("SELECT count(*) FROM evaluation") == query("SELECT count(*) FROM coder_call") == [(0,)]
    database.read(verify)


def test_an_interrupted_one_leaves_a_sound_store_and_can_be_finished(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "GROUPS", 1)
    at_rest(database)
    plan = planned(database, "first")
    steps = prune._steps(list(plan.runs))
    for done in range(4):
        assert database.write(steps[0]), done
        with pytest.raises(StoreError) as caught:
            database.read(verify)
        (complaint,) = caught.value.message.splitlines()[1:]
        assert "texts that nothing refers to" in complaint
    prune.prune(database, list(planned(database, "first").runs))
    assert rows(database)["run"] == 0
    database.read(verify)


def test_a_run_at_work_is_kept(database: Database) -> None:
    world = World.make(database)
    world.open_group(1)
    assert planned(database, "first") == prune.Plan(
        {}, {"first": "a collector is at work on its group 0"}, {}
    )
    database_says(database, _EXPIRE["rollout_group"])
    _, (member,) = world.open_group(1, lease_s=EXPIRED)
    job = world.implement(world.suggest(member), "kernel")
    assert planned(database, "first").kept == {}
    world.claim()
    assert planned(database, "first").kept == {"first": f"a worker is at work on its evaluation {job}"}


def test_a_run_that_wakes_up_in_between_is_kept(database: Database) -> None:
    world = World.make(database)
    world.complete_group()
    plan = planned(database, "first")
    world.open_group(1)
    with pytest.raises(StoreError, match="used again"):
        prune.prune(database, list(plan.runs))
    assert rows(database)["turn"] == 4


def test_runs_that_others_were_trained_on(database: Database) -> None:
    """first <- second <- third: only from the end, or all together."""
    worlds = [World.make(database, name) for name in ("first", "second", "third")]
    for world in worlds:
        world.complete_group()
    for user, used in ((worlds[1], worlds[0]), (worlds[2], worlds[1])):
        user.commit(1, used.take(0))
    assert planned(database, "first").kept == {"first": "run second was trained on its turns"}
    assert planned(database, "first", "second").kept.keys() == {"first", "second"}
    together = planned(database, "first", "second", "third")
    assert together.kept == {}
    prune.prune(database, list(together.runs))
    assert rows(database)["train_sample"] == rows(database)["run"] == 0


def test_by_age(database: Database) -> None:
    World.make(database, "old").complete_group()
    World.make(database, "busy").complete_group()
    for table, column in (("run", "created_at"), ("policy_version", "created_at")):
        database.write(_a_month_earlier, table, column, "id = id")
    for column in ("created_at", "finished_at"):
        database.write(_a_month_earlier, "rollout_group", column, "run_id = 1")
    assert database.read(prune.plan, (), 29 * 86400.0).runs == {1: "old"}
    assert database.read(prune.plan, (), 31 * 86400.0).runs == {}
    assert database.read(prune.plan, (), 0.0).runs == {1: "old", 2: "busy"}


def _a_month_earlier(conn, table: str, column: str, where: str) -> None:  # type: ignore[no-untyped-def]
    earlier = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', {column}, '-30 days')",
        "postgresql": f"{column} - interval '30 days'",
    }[conn.dialect.name]
    conn.exec_driver_sql(f"UPDATE {table} SET {column} = {earlier} WHERE {where}")


def test_checkpoints_that_another_run_names_are_not_listed(database: Database) -> None:
    first, _ = World.make(database), World.make(database, "second")
    first.complete_group()
    first.commit(1, first.take(0))
    assert planned(database, "first").checkpoints == {"first": ["/checkpoints/1"]}
    assert planned(database, "first", "second").checkpoints["first"] == ["/checkpoints/0", "/checkpoints/1"]


def test_ids_that_are_given_again_have_no_history(database: Database, query: Query) -> None:
    at_rest(database)
    database.write(events.log, "run_seen", "run", 1, "test")
    prune.prune(database, list(planned(database, "first").runs))
    assert query("SELECT kind, subject_id FROM event") == [("run_pruned", None)]


def test_texts_that_are_stored_meanwhile_stay(database: Database) -> None:
    """Others write on: none of their texts, calls or evaluations may vanish before they refer to them."""
    for name in ("first", "third"):
        World.make(database, name).complete_group([[1.0]] * 4)
    second, stop, failed = World.make(database, "second"), threading.Event(), []

    def write_on() -> None:
        try:
            while not stop.is_set():
                group, (member,) = second.open_group(1)
                turn = second.suggest(member)
                second.implement(
                    turn, f"kernel of turn {group.ordinal % 8}", call(f"key {group.ordinal % 8}")
                )
                database.write(rollouts.settle, turn, reward=None, outcome=None, fault="infra", last=True)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write_on)
    writer.start()
    for name in ("first", "third"):
        prune.prune(database, list(planned(database, name).runs))
    stop.set()
    writer.join()
    assert failed == []
    assert [run.name for run in database.read(runs.list_)] == ["second"]
    assert database.read(policies.latest, second.run.id) == second.base
    database.read(verify)


def test_every_table_that_refers_to_a_run_is_thought_of() -> None:
    """A new one has to be added to `prune` and to `belongings`."""
    named = {
        "run",
        "policy_version",
        "rollout_group",
        "trajectory",
        "turn",
        "tokens",
        "evaluation",
        "coder_call",
    }
    refer = {
        t.name for t in metadata.sorted_tables if any(k.column.table.name in named for k in t.foreign_keys)
    }
    handled = {table.name for table in vars(prune).values() if isinstance(table, sa.Table)}
    assert refer <= handled


def test_checkpoint_paths_are_not_touched_by_the_store(database: Database, tmp_path: Path) -> None:
    world = World.make(database)
    kept = tmp_path / "step-000001"
    kept.mkdir()
    database.write(policies.add, world.run.id, 1, str(kept), "digest")
    prune.prune(database, list(planned(database, "first").runs))
    assert kept.is_dir()
