"""Other settings on the rollouts of a run that was trained: a run of its own, which can be replayed too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result
from unit.train.filling import GROUPS_PER_STEP, fill, small_config, start

from kpipe.cli.app import app
from kpipe.config import from_json
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import ConfigError, UsageError
from kpipe.policy.files import digest
from kpipe.replay import rescore, scoring
from kpipe.replay.lookup import find_run
from kpipe.replay.retrain import Retraining
from kpipe.store import blobs, catalog, events, policies, queue, training, verify, workers
from kpipe.store.database import Database
from kpipe.train import trainer
from kpipe.train.batch import score

STEPS = 3


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of three updates. Its turns have verdicts, so that another formula can score them."""
    folder = tmp_path_factory.mktemp("source")
    filled = start(folder, small_config(folder / "out", steps=STEPS, kl_beta=0.01))
    fill(filled, STEPS * GROUPS_PER_STEP)
    with Database.open(filled.url) as db:
        db.write(add_verdicts)
    trainer.main(filled.url, filled.run.name)
    return filled.url


def add_verdicts(conn: Any) -> None:
    """Speedup = reward - 0.3, which is what the default formula says. Every third group has another problem."""
    other, _ = catalog.add(conn, Problem("made-up", 1, "other", "train", "class Model: pass"))
    conn.exec_driver_sql("UPDATE rollout_group SET problem_id = ? WHERE ordinal % 3 = 0", (other,))
    worker = workers.register(conn, "evaluate", "host", 1, "cpu")
    judged = (
        "SELECT turn.id, reward, outcome, problem_id FROM turn JOIN trajectory ON trajectory.id = trajectory_id"
        " JOIN rollout_group ON rollout_group.id = group_id WHERE outcome IS NOT NULL"
    )
    for turn, reward, outcome, problem in conn.exec_driver_sql(judged).fetchall():
        sha = blobs.put(conn, f"kernel {turn}")
        job = queue.enqueue(conn, problem, sha, "1", "cpu")
        (claimed,) = queue.claim(conn, worker, "cpu", 100.0)
        times = {"time_ms": 1.0, "baseline_ms": reward - 0.3, "speedup": reward - 0.3}
        verdict = Verdict(Outcome(outcome), **(times if outcome == "correct" else {}))
        queue.report(conn, job, claimed.lease, verdict)
        conn.exec_driver_sql(
            "UPDATE turn SET kernel_sha = ?, evaluation_id = ? WHERE id = ?", (sha, job, turn)
        )


def what_if(url: str, *options: str, into: str) -> Result:
    arguments = ["replay", "train", "--run", "filled", "--db", url, "--into", into, *options]
    return CliRunner().invoke(app, arguments)


def read(url: str, name: str) -> tuple[Any, list[Any], list[Any]]:
    """Lineage, policy versions, updates."""
    with Database.open(url) as db:
        run = find_run(db, name)
        (lineage,) = db.read(events.details, "lineage", "run", run.id)
        return lineage, db.read(policies.list_, run.id), db.read(training.committed, run.id)


def replayed(url: str, name: str) -> list[Any]:
    with Database.open(url) as db:
        return [r.first for r in Retraining(db, find_run(db, name), None, None).run_all()]


def test_nothing_changed_gives_the_same_parameters(url: str) -> None:
    result = what_if(url, into="same")
    assert result.exit_code == 0, result.output
    lineage, versions, steps = read(url, "same")
    assert (lineage["from"], lineage["steps"], lineage["rewards"]) == ("filled", [1, 2, 3], "stored")
    with Database.open(url) as db:
        source = find_run(db, "filled")
        original = db.read(policies.list_, source.id)
        hashes = [s.batch_hash for s in db.read(training.committed, source.id)]
    assert [v.digest for v in versions] == [v.digest for v in original]
    assert [s.batch_hash for s in steps] == hashes


def test_another_rate_and_advantage(url: str) -> None:
    options = ("--set", "train.learning_rate=0.05", "--set", "train.advantage=rloo")
    result = what_if(url, *options, into="faster")
    assert result.exit_code == 0, result.output
    assert "train.learning_rate 0.01 -> 0.05" in result.output
    assert "KL the mismatch per token" in result.output
    assert "…" not in result.output
    lineage, versions, steps = read(url, "faster")
    assert lineage["changes"]["train.advantage"] == ["grpo", "rloo"]
    assert [s.metrics["learning_rate"] for s in steps] == [0.05] * 3
    assert [digest(v.path) for v in versions] == [v.digest for v in versions]
    # Stored rollouts fit the base policy; a policy that moved on is farther away from them.
    assert steps[0].metrics["mismatch_ess"] == pytest.approx(1.0)
    assert 0 < steps[2].metrics["mismatch_ess"] < 0.999
    assert steps[2].metrics["mismatch_k3"] > 0
    assert replayed(url, "faster") == [None] * 3


def test_another_formula_and_its_replay(url: str) -> None:
    result = what_if(url, "--reward", "kevin", "--json", into="kevin")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["lineage"]["rewards"] == "recomputed"
    assert [u["source_update"] for u in told["updates"]] == [1, 2, 3]
    with Database.open(url) as db:
        before = [s.metrics["reward_mean"] for s in db.read(training.committed, find_run(db, "filled").id)]
    assert all(u["reward"] > old for u, old in zip(told["updates"], before, strict=True))
    assert replayed(url, "kevin") == [None] * 3


def test_only_some_problems(url: str) -> None:
    """Groups 0 and 3 have the other problem: they are in updates 1 and 2."""
    assert what_if(url, "--problems", "other", into="other").exit_code == 0
    lineage, _, steps = read(url, "other")
    assert (lineage["steps"], lineage["problems"]) == ([1, 2], ["other"])
    assert [s.metrics["groups"] for s in steps] == [1, 1]
    assert replayed(url, "other") == [None] * 2


def test_part_of_the_updates_from_their_own_start(url: str) -> None:
    assert what_if(url, "--from", "2", "--to", "2", into="part").exit_code == 0
    lineage, versions, steps = read(url, "part")
    assert (lineage["steps"], lineage["policy"], len(steps)) == ([2], 1, 1)
    with Database.open(url) as db:
        start_digest = db.read(policies.get, find_run(db, "filled").id, 1).digest
    assert versions[0].digest == start_digest


def test_the_same_command_again_is_done_already(url: str) -> None:
    assert what_if(url, "--to", "1", into="again").exit_code == 0
    before = read(url, "again")
    assert what_if(url, "--to", "1", into="again").exit_code == 0
    assert read(url, "again") == before


def test_the_database_stays_without_contradictions(url: str) -> None:
    assert what_if(url, "--set", "train.gamma=0.9", into="gamma").exit_code == 0
    with Database.open(url) as db:
        for name, query in verify.invariants().items():
            found = db.read(lambda conn, query=query: list(conn.exec_driver_sql(query)))
            assert found == [], name


def test_rescoring_the_source_reaches_the_runs_that_learned_from_it(url: str, tmp_path: Path) -> None:
    shutil.copy(url.removeprefix("sqlite:///"), tmp_path / "kpipe.db")
    url = f"sqlite:///{tmp_path / 'kpipe.db'}"
    assert what_if(url, "--to", "1", "--set", "train.learning_rate=0.0005", into="learned").exit_code == 0
    assert what_if(url, "--to", "1", "--reward", "kevin", into="own-formula").exit_code == 0

    with Database.open(url) as db:
        rescore.under_formula(db, "filled", "kevin", apply=True)
        source, learned = (
            {s.turn_id: (s.return_, s.advantage) for s in db.read(training.trained, find_run(db, name).id, 1)}
            for name in ("filled", "learned")
        )
        db.read(verify.verify)
    assert learned == source
    assert "changed rewards (kevin)" in why(url, "learned")
    assert replayed(url, "own-formula") == [None]  # it never used the stored rewards

    kernel = (
        "SELECT kernel_sha FROM turn JOIN train_sample s ON s.turn_id = turn.id"
        " WHERE s.run_id = 1 AND step = 1 AND outcome = 'correct'"
    )
    with Database.open(url) as db:
        (sha, *_) = db.read(lambda conn: list(conn.exec_driver_sql(kernel).scalars()))
        found = rescore.with_hacks(db, sha, apply=True)
        db.read(verify.verify)
    assert {"filled", "learned", "own-formula"} <= {run.name for run in found.runs}
    assert f"changed rewards (hack: {sha})" in why(url, "own-formula")
    with Database.open(url) as db:
        own = find_run(db, "own-formula")
        groups = db.read(scoring.rewarded, db.read(training.taken, own.id, 1), from_json(own.config).reward)
        again = {s.sample.turn_id: s.return_ for s in score(groups, from_json(own.config).train)}
        assert {s.turn_id: s.return_ for s in db.read(training.trained, own.id, 1)} == again


def why(url: str, name: str) -> str:
    """What a replay says about the first update, which differs."""
    with Database.open(url) as db:
        (different,) = Retraining(db, find_run(db, name), 1, 1).run_all()
    assert not different.accepted
    return different.why


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--set", "collect.group_size=8"], UsageError, "cannot be changed on stored rollouts"),
        (["--set", "train.learning_rat=1"], ConfigError, "Did you mean train.learning_rate"),
        (["--problems", "nothin"], UsageError, "Near: nothing"),
        (["--from", "8"], UsageError, "Near: 1, 2, 3"),
        (["--reward", "kevn"], ConfigError, "kevin"),
    ],
)
def test_mistakes_are_sentences(url: str, options: list[str], error: type, message: str) -> None:
    result = what_if(url, *options, into="never")
    assert isinstance(result.exception, error), result.output
    assert message in str(result.exception)
    with Database.open(url) as db, pytest.raises(UsageError):
        find_run(db, "never")


def test_a_taken_name(url: str) -> None:
    result = what_if(url, into="filled")
    assert isinstance(result.exception, UsageError)
    assert "already" in str(result.exception)


def test_changes_need_a_name(url: str) -> None:
    result = CliRunner().invoke(app, ["replay", "train", "--set", "train.gamma=1.0", "--db", url])
    assert isinstance(result.exception, UsageError)
    assert "--into" in str(result.exception)
