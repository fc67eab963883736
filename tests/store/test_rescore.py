"""Stored verdicts under another formula, and kernels that are found to be hacks later; on both databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.store_world import GOOD, World

from kpipe.errors import ConfigError, StoreError, TrainError, UsageError
from kpipe.replay import rescore, scoring
from kpipe.store import blobs, queue, training, verify
from kpipe.store.records import SampleChange
from kpipe.train.folder import CheckpointFolder

Query = Callable[[str], list[tuple[Any, ...]]]
REWARDS = ((1.0, 2.0), (0.5, 0.0))


@pytest.fixture
def trained(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """One group, trained, and one that waits. All verdicts are GOOD: a speedup of 2, at least 1.9."""
    monkeypatch.chdir(tmp_path)
    world.complete_group(REWARDS)
    world.commit(1, world.take(0))
    world.complete_group(((None, 2.3), (2.3, 2.3)))
    return world


def test_a_report_writes_nothing(trained: World, query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    before = query("SELECT id, reward FROM turn ORDER BY id"), query("SELECT count(*) FROM event")
    found = rescore.under_formula(trained.db, "first", "kevin", apply=False)
    assert [(c.turn.id, c.turn.reward, c.reward) for c in found.changes] == [
        (1, 1.0, 2.3),
        (2, 2.0, 2.3),
        (3, 0.5, 2.3),
        (4, 0.0, 2.3),
    ]
    (row,) = scoring.means(found)
    assert (row.problem, row.turns, row.changed) == ("square", 7, 4)
    assert row.before == pytest.approx((3.5 + 3 * 2.3) / 7)
    assert row.after == pytest.approx(2.3)
    assert scoring.largest(found, 1)[0].turn.id == 4
    rescore.print_report(found, applied=False)
    said = capsys.readouterr().out
    assert "kevin: 4 of 7 rewarded turns change, and 4 trained samples" in said
    assert "Nothing was written" in said
    after = query("SELECT id, reward FROM turn ORDER BY id"), query("SELECT count(*) FROM event")
    assert after == before


def test_applied_and_the_old_values_kept(trained: World, query: Query) -> None:
    rescore.under_formula(trained.db, "first", "kevin", apply=True)
    rewards = query("SELECT reward FROM turn WHERE fault IS NULL")
    assert rewards == [(pytest.approx(2.3),)] * 7
    samples = trained.db.read(training.trained, trained.run.id, 1)
    assert [s.return_ for s in samples] == pytest.approx([2.3 + 0.4 * 2.3, 2.3] * 2)
    assert [(s.advantage, s.weight, s.drop_reason) for s in samples] == [(0.0, 1.0, None)] * 4
    ((detail,),) = query("SELECT detail FROM event WHERE kind = 'rescored'")
    detail = json.loads(detail) if isinstance(detail, str) else detail
    assert detail["formula"] == "kevin"
    assert detail["turns"][0] == [1, ["correct", 1.0], ["correct", 2.3]]
    assert detail["samples"][3][:2] == [4, [0.0, 0.5]]
    assert not rescore.under_formula(trained.db, "first", "kevin", apply=False).changes


def test_later_turns_of_the_run_use_the_new_formula(trained: World, query: Query) -> None:
    rescore.under_formula(trained.db, "first", "kevin", apply=True)
    ((config,),) = query("SELECT config FROM run")
    config = json.loads(config) if isinstance(config, str) else config
    assert config["reward"]["not_compiled"] == 0.0
    assert query("SELECT count(*) FROM event WHERE kind = 'run_config_changed'") == [(1,)]


def test_a_formula_from_a_file(trained: World, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[reward]\nuse_lower_bound = true\ncorrect = 0.0\n")
    found = rescore.under_formula(trained.db, "first", str(tmp_path / "mine.toml"), apply=False)
    assert {c.reward for c in found.changes} == {1.9}


def test_signs_of_advantages_are_counted() -> None:
    pairs = [(0.5, -0.5), (-0.1, 2.0), (1.0, 0.5), (0.0, -1.0), (None, 1.0), (1.0, None)]
    samples = [SampleChange(1, 1, i, (0.0, a), (0.0, b)) for i, (a, b) in enumerate(pairs)]
    assert scoring.turned(samples) == 2


@pytest.mark.parametrize("what", ["slow-loop", "digest"])
def test_a_hack_found_today_marks_what_was_stored(trained: World, query: Query, what: str) -> None:
    sha = blobs.digest("kernel of turn 2")
    what = sha[:12] if what == "digest" else what
    hacks = {2} if what == sha[:12] else {1, 2, 3, 4, 6, 7, 8}
    found = rescore.with_hacks(trained.db, what, apply=False)
    assert {c.turn.id for c in found.changes} == hacks
    assert query("SELECT count(*) FROM turn WHERE outcome = 'hack'") == [(0,)]
    rescore.with_hacks(trained.db, what, apply=True)
    assert {i for (i,) in query("SELECT id FROM turn WHERE outcome = 'hack' AND reward = -0.5")} == hacks
    marked = query("SELECT speedup FROM evaluation WHERE outcome = 'hack'")
    assert len(marked) >= len(hacks)
    assert set(marked) == {(GOOD.speedup,)}
    assert query(f"SELECT count(*) FROM v_best WHERE kernel_sha = '{sha}'") == [(0,)]
    assert query("SELECT count(*) FROM event WHERE kind = 'evaluation_invalidated'") == [(len(marked),)]
    assert not rescore.with_hacks(trained.db, what, apply=False).changes


def test_a_kernel_that_is_judged_again_is_marked_as_well(trained: World, query: Query) -> None:
    sha = blobs.digest("kernel of turn 2")
    trained.db.write(queue.enqueue, trained.problem_id, sha, "1", "cpu", 7)
    (job,) = trained.claim()
    trained.db.write(queue.report, job.id, job.lease, GOOD)
    rescore.with_hacks(trained.db, sha, apply=True)
    assert query(f"SELECT DISTINCT outcome FROM evaluation WHERE kernel_sha = '{sha}'") == [("hack",)]


def test_the_database_stays_without_contradictions(trained: World) -> None:
    rescore.with_hacks(trained.db, "slow-loop", apply=True)
    rescore.under_formula(trained.db, "first", "kevin", apply=True)
    invariants = verify.invariants()
    outcomes = invariants["turns with another outcome than their evaluation"]
    assert trained.db.read(lambda conn: list(conn.exec_driver_sql(outcomes))) == []


@pytest.mark.parametrize(
    ("rewards", "drop", "advantages"),
    [
        (((1.0, 2.0), (0.5, 0.0)), {}, [0.0] * 4),  # trained, and now without any spread
        (
            ((2.3, 2.3), (2.3, 2.3)),
            dict.fromkeys(range(1, 5), "zero_spread"),
            [None] * 4,
        ),  # now with a spread
    ],
)
def test_what_was_dropped_stays_dropped_and_what_was_trained_stays_trained(
    world: World, rewards: Any, drop: dict[int, str], advantages: list[float | None]
) -> None:
    world.complete_group(rewards)
    world.commit(1, world.take(0), drop=drop)
    if drop:
        rescore.with_hacks(world.db, blobs.digest("kernel of turn 2"), apply=True)
    else:
        rescore.under_formula(world.db, "first", "kevin", apply=True)
    samples = world.db.read(training.trained, world.run.id, 1)
    assert [s.advantage for s in samples] == advantages
    assert len({s.return_ for s in samples}) > 1
    world.db.read(verify.verify)


def test_a_trainer_that_was_started_in_another_directory_is_seen(
    trained: World, query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    folder = CheckpointFolder("kpipe-runs", "first")
    folder.path(2).mkdir(parents=True)
    trained.complete_group()
    trained.commit(2, trained.take(1), path=str(folder.path(2)))
    monkeypatch.chdir(elsewhere)
    with folder.locked(), pytest.raises(TrainError, match="Another trainer"):
        rescore.under_formula(trained.db, "first", "kevin", apply=True)
    assert query("SELECT count(*) FROM event WHERE kind = 'rescored'") == [(0,)]
    rescore.under_formula(trained.db, "first", "kevin", apply=True)


def test_an_update_of_the_old_rewards_is_not_committed(trained: World, query: Query) -> None:
    """The trainer is on another machine: its lock cannot be seen."""
    seen, groups = trained.db.read(training.last_rescoring), trained.take(1)
    rescore.under_formula(trained.db, "first", "kevin", apply=True)
    with pytest.raises(StoreError, match="changed rewards while update 2"):
        trained.commit(2, groups, rescoring=seen)
    assert query("SELECT count(*) FROM policy_version WHERE step = 2") == [(0,)]
    seen, groups = trained.db.read(training.last_rescoring), trained.take(1)
    trained.commit(2, groups, rescoring=seen)


def test_mistakes_are_sentences(trained: World) -> None:
    with pytest.raises(UsageError, match=r"finding 'slow-lop'.* Near: slow-loop"):
        rescore.with_hacks(trained.db, "slow-lop", apply=True)
    with pytest.raises(UsageError, match="Near: first"):
        rescore.under_formula(trained.db, "frist", "kevin", apply=True)
    with pytest.raises(ConfigError, match="kevin"):
        rescore.under_formula(trained.db, "first", "kevn", apply=True)
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        rescore.under_formula(trained.db, "first", "nowhere.toml", apply=True)
