"""Every view can be read on both databases and says the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from store.store_world import EXPIRED, GOOD, World, call

from kpipe.assets import asset
from kpipe.domain.verdict import Finding, Outcome, Verdict
from kpipe.store import payments, queue, rollouts

Query = Callable[[str], list[tuple[Any, ...]]]
NAMES = re.findall(r"CREATE VIEW (\w+)", asset("store/views.sql").read_text())


@pytest.fixture
def busy(world: World) -> World:
    """A run with a little of everything."""
    world.complete_group([[1.0, 2.0], [0.5, None]])
    world.commit(1, world.take(0), drop={3: "no_signal"})
    _, members = world.open_group(4)
    hack = Verdict(
        Outcome.HACK, log="seen", findings=(Finding("calls-reference", "hard", "it calls Model", 9),)
    )
    for member, verdict in zip(members[:2], (hack, Verdict(Outcome.COMPILE_ERROR, log="no ;")), strict=True):
        turn = world.suggest(member)
        world.implement(turn, f"bad kernel {turn}", call(f"bad {turn}"))
        (job,) = world.claim()
        world.db.write(queue.report, job.id, job.lease, verdict)
        world.settle(turn, -1.0, last=True, outcome=verdict.outcome.value)
    turn = world.suggest(members[2])
    failed = call("refused", reply=None)
    world.db.write(
        rollouts.settle, turn, reward=None, outcome=None, fault="coder_failed", call=failed, last=True
    )
    world.implement(world.suggest(members[3]), "still running")
    world.claim(lease_s=EXPIRED)
    world.db.write(payments.reserve, world.run.id, "on its way", 0.5, None)
    columns = "coder_call_id, kernel_sha, evaluation_id, outcome, reward, fault"
    sample = (
        f"INSERT INTO turn_sample (turn_id, sample, chosen, {columns}) SELECT id, 0, 1, {columns} FROM turn"
    )
    world.db.write(lambda conn: conn.exec_driver_sql(f"{sample} WHERE id = 1"))
    return world


def test_all_views_of_the_design_are_there(busy: World) -> None:
    wanted = {"turn", "trajectory", "group", "best", "leaderboard", "queue", "coder_cost", "faults", "step"}
    wanted |= {
        "run",
        "policy",
        "hacks",
        "hack_rate",
        "outcomes",
        "dropped",
        "cache",
        "time",
        "sample",
        "budget",
    }
    assert set(NAMES) == {f"v_{name}" for name in wanted}
    assert set(busy.db.read(lambda conn: sa.inspect(conn).get_view_names())) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_view_has_something_to_say(busy: World, query: Query, name: str) -> None:
    assert query(f"SELECT * FROM {name}")


def test_what_the_views_say(busy: World, query: Query) -> None:
    assert query("SELECT run, problem, speedup, suggestion FROM v_best") == [
        ("first", "square", GOOD.speedup, "unroll the loop")
    ]
    assert query("SELECT problem, device, place, speedup FROM v_leaderboard ORDER BY place") == [
        ("square", "cpu", place, GOOD.speedup) for place in (1, 2, 3, 4)
    ]
    assert query("SELECT problem, state, host FROM v_queue") == [("square", "running", "host")]
    assert query("SELECT run, model, calls, failed, usd FROM v_coder_cost") == [("first", "gpt", 7, 1, 3.5)]
    assert query("SELECT fault, coder_error FROM v_faults ORDER BY turn_id") == [
        ("infra", None),
        ("coder_failed", "overloaded"),
    ]
    assert query("SELECT step, samples, trained, mean_reward FROM v_step") == [
        (1, 4, 3, pytest.approx(3.5 / 3))
    ]
    assert query("SELECT step, groups_open, groups_complete, groups_failed, turns, faults FROM v_run") == [
        (1, 1, 1, 0, 7, 2)
    ]
    ((step, turns, reward, correct, compiled),) = query(
        "SELECT policy_step, turns, mean_reward, share_correct, share_compiled FROM v_policy"
    )
    assert (step, turns) == (0, 5)
    assert [float(x) for x in (reward, correct, compiled)] == pytest.approx([0.3, 0.6, 0.8])
    assert query("SELECT rule, outcome, line FROM v_hacks WHERE severity = 'hard'") == [
        ("calls-reference", "hack", 9)
    ]
    assert query(
        "SELECT ordinal, state, turns, faults, highest_reward, consumed_step FROM v_group ORDER BY 1"
    ) == [
        (0, "complete", 4, 1, 2.0, 1),
        (1, "open", 4, 1, -1.0, None),
    ]
    assert query(
        "SELECT turns, reward, best_speedup FROM v_trajectory WHERE group_ordinal = 0 ORDER BY member"
    ) == [
        (2, 3.0, 2.0),
        (2, 0.5, 2.0),
    ]


def test_what_was_dropped_cheated_or_failed(busy: World, query: Query) -> None:
    assert query("SELECT run, step, drop_reason, samples FROM v_dropped") == [("first", 1, "no_signal", 1)]
    ((judged, hacks, suspects, found, rate),) = query(
        "SELECT judged, hacks, suspects, with_findings, hack_rate FROM v_hack_rate"
    )
    assert (judged, hacks, suspects, found) == (5, 1, 0, 4)
    assert float(rate) == pytest.approx(0.2)
    outcomes = query("SELECT source, kind, turns, share FROM v_outcomes ORDER BY source, kind")
    assert [row[:3] for row in outcomes] == [
        ("fault", "coder_failed", 1),
        ("fault", "infra", 1),
        ("verdict", "compile_error", 1),
        ("verdict", "correct", 3),
        ("verdict", "hack", 1),
    ]
    assert sum(float(row[3]) for row in outcomes) == pytest.approx(1.0)


def test_what_was_not_paid_again(busy: World, query: Query) -> None:
    """A second trajectory says what the first one said: one answer and one verdict serve both."""
    _, members = busy.open_group(2)
    for member in members:
        busy.implement(busy.suggest(member), "kernel of turn 1", call("key 1"))
    assert query(
        "SELECT coder_turns, coder_calls, coder_reused, usd_saved, evaluated_turns, evaluations, evaluations_reused "
        "FROM v_cache"
    ) == [(9, 7, 2, 1.0, 9, 7, 2)]


def test_what_samples_and_the_budget_say(busy: World, query: Query) -> None:
    assert query("SELECT turn_id, sample, chosen, outcome, model FROM v_sample") == [
        (1, 0, 1, "correct", "gpt")
    ]
    assert query("SELECT run, paid_usd, reserved_usd, calls_on_their_way FROM v_budget") == [
        ("first", 0, 0.5, 1)
    ]


def test_where_time_went(busy: World, query: Query) -> None:
    assert query("SELECT stage, work, n, seconds FROM v_time ORDER BY stage, work") == [
        ("collect", "coder", 7, 10.5),
        ("evaluate", "build", 6, 2.0),
        ("evaluate", "check and time", 6, 1.0),
    ]
