"""Stored kernels judged again by the real evaluator: agreement, drift, the same inputs, and no reward touched."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from evaluating import CACHE, source
from typer.testing import CliRunner, Result

from kpipe.cli.app import app
from kpipe.config import Config
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import UsageError
from kpipe.evaluate import worker
from kpipe.store import catalog, policies, queue, rollouts, rounds, runs, verdicts, workers
from kpipe.store.database import Database
from kpipe.store.records import SuggestedTurn, TokenRecord

SAID = TokenRecord([1], [2], [-0.5], {}, "stop")
NAMES = ("correct", "wrong_value")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with one group of two trajectories; their kernels are judged by a real worker."""
    url = f"sqlite:///{tmp_path_factory.mktemp('judged') / 'kpipe.db'}"
    settings = {"cache_dir": str(CACHE), "timing_budget_s": 0.2, "trials": 2, "build_timeout_s": 250.0}
    config = Config.model_validate({"evaluate": settings})
    with Database.open(url, create=True) as db:
        run = db.write(runs.create, "judged", config.model_dump(mode="json"), 0, "test")
        base = db.write(policies.add, run.id, 0, "/nowhere", "digest")
        problem, _ = db.write(catalog.add, Problem("test", 1, "silu", "train", source("reference")))
        group = db.write(rollouts.open_group, run.id, problem, "cpu", len(NAMES), 1000.0)
        for trajectory, name in zip(db.read(rollouts.trajectories, group.id), NAMES, strict=True):
            said = SuggestedTurn(trajectory.id, 0, base.id, "prompt", "0" * 64, name, SAID)
            (turn,) = db.write(rollouts.record_suggestions, [said])
            place = {"problem_id": problem, "harness": "1", "device": "cpu"}
            db.write(rollouts.record_kernel, turn, None, source(name), **place)
        worker.work(db, config.evaluate, once=True)
        for turn, reward in ((1, 1.5), (2, -0.5)):
            verdict = db.read(verdicts.evaluations, [turn])[turn].verdict
            db.write(rollouts.settle, turn, reward=reward, outcome=verdict.outcome, fault=None, last=True)
    return url


def evaluate(url: str, *options: str) -> Result:
    arguments = ["replay", "evaluate", "--run", "judged", "--now", "--db", url, *options]
    return CliRunner().invoke(app, arguments)


def rows(url: str, sql: str) -> list[Any]:
    with Database.open(url) as db:
        return db.read(lambda conn: [tuple(r) for r in conn.exec_driver_sql(sql)])


def test_the_same_inputs_give_the_same_verdicts(url: str) -> None:
    before = rows(url, "SELECT id, reward, evaluation_id, outcome FROM turn")
    result = evaluate(url, "--same-seeds", "--json")
    assert result.exit_code == 0, result.output
    pairs = json.loads(result.output)
    assert {p["after"]["outcome"] for p in pairs} == set(NAMES)
    for pair in pairs:
        assert pair["after"]["detail"]["seeds"] == pair["before"]["detail"]["seeds"]
        assert pair["after"]["id"] != pair["before"]["id"]
    (wrong,) = (p for p in pairs if p["after"]["outcome"] == "wrong_value")
    assert wrong["after"]["detail"]["mismatch"] == wrong["before"]["detail"]["mismatch"]
    assert rows(url, "SELECT id, reward, evaluation_id, outcome FROM turn") == before


def test_fresh_inputs_and_another_round_each_time(url: str) -> None:
    (last,) = rows(url, "SELECT max(round) FROM evaluation")[0]
    result = evaluate(url, "--turn", "2", "--json")
    assert result.exit_code == 0, result.output
    (pair,) = json.loads(result.output)
    assert pair["after"]["round"] == last + 1
    assert pair["after"]["detail"]["seeds"] != pair["before"]["detail"]["seeds"]


def test_another_verdict_fails(url: str) -> None:
    with Database.open(url) as db:
        db.write(lambda conn: conn.exec_driver_sql("UPDATE evaluation SET outcome = 'crash' WHERE id = 2"))
    try:
        result = evaluate(url, "--problem", "silu")
    finally:
        with Database.open(url) as db:
            undo = "UPDATE evaluation SET outcome = 'wrong_value' WHERE id = 2"
            db.write(lambda conn: conn.exec_driver_sql(undo))
    assert result.exit_code == 1
    assert "1 of 2 verdicts agree" in result.output


def test_a_fault_of_the_machine_is_counted_apart(url: str) -> None:
    """The worker has no luck with the second kernel."""
    with Database.open(url) as db, ThreadPoolExecutor(1) as thread:
        worked = thread.submit(report_two, db)
        arguments = ["replay", "evaluate", "--run", "judged", "--problem", "silu", "--db", url]
        result = CliRunner().invoke(app, arguments)
        worked.result()
    assert result.exit_code == 0, result.output
    assert "1 of 1 verdicts agree, 1 could not be judged (infra)" in result.output
    assert "ANOTHER VERDICT" not in result.output


def report_two(db: Database) -> None:
    number = db.write(workers.register, "evaluate", "host", 1, "cpu")
    reported = 0
    while reported < len(NAMES):
        for job in db.write(queue.claim, number, "cpu", 100.0):
            good = job.kernel == source("correct")
            verdict = Verdict(Outcome.CORRECT, 1.0, 2.0, 2.0, 1.9, 2.1) if good else Verdict(Outcome.INFRA)
            db.write(queue.report, job.id, job.lease, verdict)
            reported += 1
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--problem", "sillu"], "Near: silu"),
        (["--turn", "17"], "no turn 17. Near: 1, 2"),
        (["--best", "--sample", "2"], "exclude each other"),
        (["--run", "juged"], "Near: judged"),
    ],
)
def test_mistakes_are_sentences(url: str, options: list[str], message: str) -> None:
    before = rows(url, "SELECT count(*) FROM evaluation")
    result = evaluate(url, *options)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert rows(url, "SELECT count(*) FROM evaluation") == before


def test_the_best_are_those_of_the_view(url: str) -> None:
    with Database.open(url) as db:
        assert db.read(rounds.best, 1) == {1}
