"""The queue under several processes, and the plan of its hottest statement."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from store.processes import race
from store.store_world import DEVICE, EXPIRED, GOOD, HARNESS, LEASE_S, World

from kpipe.domain.verdict import Outcome, Verdict
from kpipe.store import blobs, catalog, queue, rollouts

Query = Callable[[str], list[tuple[Any, ...]]]
WORKERS, JOBS = 4, 120


def test_four_processes_never_double_a_claim(world: World, database_url: str, query: Query) -> None:
    jobs = world.queued(JOBS)
    printed = race([["claim_all.py", database_url, str(world.worker)]] * WORKERS)
    claimed = [[int(line) for line in text.split()] for text in printed]
    times = Counter(job for ids in claimed for job in ids)
    assert times == Counter(jobs)
    assert sum(1 for ids in claimed if ids) > 1, "one process had everything: nothing was contended"
    assert query("SELECT count(*) FROM evaluation WHERE state = 'done'") == [(JOBS,)]


def test_jobs_come_by_rank_then_age(world: World) -> None:
    first, second = world.queued(2)
    sha = world.db.write(blobs.put, "an urgent kernel")
    urgent = world.db.write(queue.enqueue, world.problem_id, sha, HARNESS, DEVICE, rank=-1)
    assert [world.claim()[0].id for _ in range(3)] == [urgent, first, second]
    assert world.claim() == []


def test_a_job_holds_all_that_a_worker_needs(world: World) -> None:
    (evaluation,) = world.queued(1)
    (job,) = world.claim(limit=5)
    problem = world.db.read(catalog.get, world.problem_id)
    assert (job.id, job.problem_id, job.attempt) == (evaluation, world.problem_id, 1)
    assert (job.reference, job.kernel) == (problem.problem.source, "kernel 1")
    assert (job.device, job.harness) == (DEVICE, HARNESS)


def test_a_worker_gets_only_jobs_of_its_device(world: World) -> None:
    world.queued(1)
    assert world.db.write(queue.claim, world.worker, "h200", LEASE_S, 1) == []


def test_a_verdict_comes_back_as_it_was_reported(world: World, query: Query) -> None:
    (evaluation,) = world.queued(1)
    assert world.db.read(rollouts.evaluations, [evaluation])[evaluation].verdict is None
    (job,) = world.claim()
    assert world.db.read(queue.depth) == {"queued": 0, "running": 1}
    world.db.write(queue.report, job.id, job.lease, GOOD)
    result = world.db.read(rollouts.evaluations, [evaluation, 10**6])
    assert list(result) == [evaluation]
    assert (result[evaluation].state, result[evaluation].verdict) == ("done", GOOD)
    assert query("SELECT mode, time_ms, n FROM baseline") == [("eager", 2.0, 1)]


def test_evidence_that_no_database_can_hold_is_stored_without_it(world: World) -> None:
    (evaluation,) = world.queued(1)
    (job,) = world.claim()
    evidence = {"got": float("nan"), "at": [1, float("inf")], "text": "a\0b\ud800"}
    world.db.write(queue.report, job.id, job.lease, Verdict(Outcome.WRONG_VALUE, detail=evidence, log="\0"))
    verdict = world.db.read(rollouts.evaluations, [evaluation])[evaluation].verdict
    assert verdict is not None
    assert verdict.detail == {"got": None, "at": [1, None], "text": "a\ufffdb\ufffd"}
    assert verdict.log == "\ufffd"


def test_baselines_gather_over_evaluations(world: World, query: Query) -> None:
    world.queued(3)
    for baseline_ms in (1.0, 2.0, 6.0):
        (job,) = world.claim()
        verdict = Verdict(Outcome.CORRECT, time_ms=1.0, baseline_ms=baseline_ms, speedup=baseline_ms)
        world.db.write(queue.report, job.id, job.lease, verdict)
    (row,) = query("SELECT time_ms, spread_ms, n FROM baseline")
    assert row == pytest.approx((3.0, 0.5 + (4.5 - 0.5) / 3, 3))


def test_the_same_kernel_is_evaluated_once(world: World) -> None:
    _, members = world.open_group(3)
    first, second, third = (world.suggest(t) for t in members)
    evaluation = world.implement(first, "the same kernel")
    assert world.implement(second, "the same kernel") == evaluation
    (job,) = world.claim(limit=5)
    world.db.write(queue.report, job.id, job.lease, GOOD)
    assert world.implement(third, "the same kernel") == evaluation
    assert world.claim() == []


def test_another_round_is_another_evaluation(world: World) -> None:
    (evaluation,) = world.queued(1)
    sha = world.db.write(blobs.put, "kernel 1")
    again = world.db.write(queue.enqueue, world.problem_id, sha, HARNESS, DEVICE)
    other = world.db.write(queue.enqueue, world.problem_id, sha, HARNESS, DEVICE, 1)
    assert again == evaluation
    assert other != evaluation


def test_a_given_up_kernel_is_tried_again_when_it_is_asked_for_again(world: World) -> None:
    _, members = world.open_group(2)
    first, second = (world.suggest(t) for t in members)
    evaluation = world.implement(first, "unlucky")
    world.claim(lease_s=EXPIRED)
    assert world.db.write(queue.reap, 1) == 1
    assert world.db.read(rollouts.evaluations, [evaluation])[evaluation].state == "failed"
    assert world.implement(second, "unlucky") == evaluation
    (job,) = world.claim()
    assert (job.id, job.attempt) == (evaluation, 1)


def test_claiming_is_served_by_the_partial_index(world: World) -> None:
    """With many finished jobs, neither database may look at one of them."""
    world.queued(2)
    world.db.write(_many_finished)
    plan = "\n".join(world.db.write(_explain_claim))
    assert "ix_evaluation_claim" in plan
    assert "SCAN" not in plan
    assert "Seq Scan" not in plan


def _many_finished(conn: sa.Connection, n: int = 5000) -> None:
    columns = "problem_id, kernel_sha, harness, device, rank, attempt, failures, not_before, queued_at"
    conn.execute(
        sa.text(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n}) "
            f"INSERT INTO evaluation ({columns}, round, state, outcome) "
            f"SELECT {columns}, i, 'done', 'correct' "
            "FROM (SELECT * FROM evaluation ORDER BY id LIMIT 1) e CROSS JOIN n"
        )
    )
    conn.exec_driver_sql("ANALYZE")


def _explain_claim(conn: sa.Connection) -> list[str]:
    claim = queue._CLAIM.compile(dialect=conn.dialect)
    values = claim.construct_params({"for_device": DEVICE, "by": 1, "token": "t", "seconds": 1.0})
    if claim.positiontup:
        bound = tuple(values[name] for name in claim.positiontup)
        return [str(row[-1]) for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {claim}", bound)]
    # The plan for any values: what a prepared statement comes to, which must not need to know the state.
    numbers = count(1)
    generic = re.sub(r"%\(\w+\)s", lambda _: f"${next(numbers)}", str(claim))
    return [str(row[0]) for row in conn.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN) {generic}")]
