"""What the stages ask again and again costs the same after a million turns: by an index, never by a whole table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from bulk import DEVICE, FRESH, MEMBERS, TURNS, fill
from sqlalchemy import event
from store.store_world import GOOD, TOKENS, call

from kpipe.store import policies, queue, rollouts, training, workers
from kpipe.store.database import Database
from kpipe.store.records import SuggestedTurn, TrainedSample

N = 16_000
PARTIAL = {"ix_evaluation_claim", "ix_evaluation_lease", "ix_rollout_group_open", "ix_rollout_group_fresh"}
PARTIAL |= {"ix_coder_payment_reserved"}
"""Indexes of what is under way, which is little: they may be read from end to end."""
GROWING = {
    "turn",
    "tokens",
    "trajectory",
    "evaluation",
    "rollout_group",
    "blob",
    "coder_call",
    "train_sample",
}
GROWING |= {"finding", "event", "turn_sample", "coder_payment"}

Statement = tuple[str, Any]


def evaluate(db: Database, run_id: int) -> None:
    """A claim, a renewal and a verdict; a job that is given back; the sweep."""
    first, second = db.write(queue.claim, 1, DEVICE, 600.0, 2)
    db.write(queue.renew, [(first.id, first.lease)], 600.0)
    db.write(queue.report, first.id, first.lease, GOOD)
    db.write(queue.give_back, second.id, second.lease, reason="busy", delay_s=0.0, max_attempts=3)
    db.write(queue.reap, 3)
    db.read(queue.depth)
    db.write(workers.heartbeat, 1, {"busy": 1})


def collect(db: Database, run_id: int) -> None:
    """A group from its first suggestion to its end, with everything that resuming asks."""
    version = db.read(policies.latest, run_id)
    assert version is not None
    group = db.write(rollouts.open_group, run_id, 1, DEVICE, 1, -1.0)
    resumed = db.write(rollouts.claim_group, run_id, 600.0)
    assert resumed is not None
    assert resumed.id == group.id
    db.write(rollouts.renew_group, group.id, resumed.lease, 600.0)
    (member,) = db.read(rollouts.trajectories, group.id)
    said = SuggestedTurn(member.id, 0, version.id, "prompt", "t", "tile it", TOKENS)
    (turn,) = db.write(rollouts.record_suggestions, [said])
    db.read(rollouts.cached_call, "a key")
    where = {"problem_id": 1, "harness": "1", "device": DEVICE}
    job = db.write(rollouts.record_kernel, turn, call("a key"), "a new kernel", **where)
    db.read(rollouts.turns, member.id)
    db.read(rollouts.evaluations, [job])
    db.write(rollouts.settle, turn, reward=1.0, outcome="correct", fault=None, last=True)
    db.read(rollouts.next_ordinal, run_id)
    assert db.read(rollouts.ahead, run_id, 1) == {"open": 0, "fresh": FRESH + 1, "trainer_step": version.step}


def train(db: Database, run_id: int) -> None:
    """An update: are there groups, take them, leave out stale ones, commit."""
    version = db.read(policies.latest, run_id)
    assert version is not None
    step = version.step
    assert db.read(training.ready, run_id, step, 1) > 0
    assert db.read(training.stale_groups, run_id, step, 1) == []
    (group,) = db.read(training.take, run_id, step, 1, 1)
    assert len(group) == MEMBERS * TURNS
    samples = [TrainedSample(s.turn_id, s.reward, 0.5, 1.0, None) for s in group]
    checkpoint = ("/checkpoint", "digest")
    db.write(training.commit_step, run_id, step + 1, version.id, checkpoint, "hash", {}, samples, ())


@contextmanager
def recorded() -> Iterator[list[Statement]]:
    """Everything that any connection executes meanwhile."""
    found: list[Statement] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        found.append((statement, parameters[0] if many else parameters))

    event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(sa.Engine, "before_cursor_execute", note)


def whole_reads(db: Database, statement: Statement) -> list[str]:
    """Steps of the plan that read all of a table that grows, or all of an index of it."""
    text, parameters = statement
    if db.dialect == "sqlite":
        plan = db.write(lambda conn: conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters).all())
        return [detail for *_, detail in plan if _scans(detail)]
    plan = db.write(_plan_of_a_big_table, text, parameters)
    return [json.dumps(node) for node in _nodes(plan) if _reads_all(node)]


def _plan_of_a_big_table(conn: sa.Connection, text: str, parameters: Any) -> dict[str, Any]:
    """Postgres is right to read a small table from end to end: here that costs as much as if it were big."""
    for method in ("seqscan", "hashjoin", "mergejoin"):
        conn.exec_driver_sql(f"SET LOCAL enable_{method} = off")
    plan: dict[str, Any] = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}", parameters).scalar_one()[0][
        "Plan"
    ]
    return plan


def _scans(detail: str) -> bool:
    """SQLite: SEARCH looks something up, SCAN reads everything."""
    if not detail.startswith("SCAN") or re.match(r"SCAN (CONSTANT|anon|\(subquery|\d+ CONSTANT)", detail):
        return False
    return not any(f"INDEX {name}" in detail for name in PARTIAL)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _reads_all(node: dict[str, Any]) -> bool:
    """Postgres: a sequential scan, or one of an index without a condition."""
    kind = node["Node Type"]
    if kind == "Seq Scan":
        return node["Relation Name"] in GROWING
    if kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan"):
        return "Index Cond" not in node and node["Index Name"] not in PARTIAL
    return False


@pytest.fixture
def long(database: Database) -> tuple[Database, int]:
    return database, fill(database, N)


@pytest.mark.parametrize("stage", [evaluate, collect, train])
def test_no_stage_reads_a_whole_table(
    long: tuple[Database, int], stage: Callable[[Database, int], None]
) -> None:
    db, run_id = long
    with recorded() as statements:
        stage(db, run_id)
    # SQLite lists what it would search if a foreign key were violated; VALUES read nothing else.
    asked = [s for s in statements if re.match(r"SELECT|UPDATE|WITH|INSERT(?!.*VALUES)", s[0], re.DOTALL)]
    assert asked
    offending = {text: found for text, p in asked if (found := whole_reads(db, (text, p)))}
    assert offending == {}


def test_a_whole_read_would_be_seen(long: tuple[Database, int]) -> None:
    db, _ = long
    assert whole_reads(db, ("SELECT * FROM turn WHERE fault = 'infra'", ()))
    assert whole_reads(db, ("SELECT count(*) FROM evaluation WHERE outcome = 'hack'", ()))
    assert not whole_reads(db, ("SELECT * FROM turn WHERE id = 7", ()))
