"""Every question of docs/sql.md, asked of both databases, has the answer that its table promises."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from store.store_world import EXPIRED, World, call

from kpipe.assets import asset
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Finding, Outcome, Verdict
from kpipe.store import catalog, queue, rollouts
from kpipe.store.ask import ask

DOCS = (asset("docs") / "sql.md").read_text(encoding="utf-8")
QUESTIONS = {
    title: (sql, tuple(header.split(" | ")))
    for title, sql, header in re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?```sql\n(.*?)```\n\n\| (.*?) \|\n", DOCS, re.DOTALL | re.MULTILINE
    )
}
HACK = Verdict(Outcome.HACK, findings=(Finding("calls-reference", "hard", "it calls Model", 9),))


@pytest.fixture
def lived(world: World) -> World:
    """Two updates, of which one dropped a sample and one left out a stale group; a problem that only fails;
    a coder that fails; a job that runs; and two turns that say again what was said before."""
    world.complete_group([[1.0, 2.0], [0.5, None]])
    world.complete_group([[1.0, 1.0], [1.0, 1.0]])
    version = world.commit(1, world.take(0, limit=1), drop={3: "no_signal"}, seconds=2.0, seconds_wait=0.5)
    world.complete_group([[3.0, 3.0]], version)
    world.commit(2, world.take(1, max_off_policy_steps=0), stale=[2], seconds=2.0, seconds_wait=0.5)
    cube, _ = world.db.write(catalog.add, Problem("suite", 2, "cube", "train", "class Model: pass"))
    _fail_in_every_way(replace(world, problem_id=cube))
    _, members = world.open_group(2)
    for member in members:
        world.implement(world.suggest(member), "kernel of turn 1", call("key 1"))
    return world


def _fail_in_every_way(world: World) -> None:
    _, members = world.open_group(4)
    for member, verdict in zip(members, (HACK, Verdict(Outcome.COMPILE_ERROR)), strict=False):
        turn = world.suggest(member)
        world.implement(turn, f"bad kernel {turn}", call(f"bad {turn}"))
        (job,) = world.claim()
        world.db.write(queue.report, job.id, job.lease, verdict)
        world.settle(turn, -1.0, last=True, outcome=verdict.outcome.value)
    failed = call("refused", reply=None)
    turn = world.suggest(members[2])
    world.db.write(
        rollouts.settle, turn, reward=None, outcome=None, fault="coder_failed", call=failed, last=True
    )
    world.implement(world.suggest(members[3]), "still running")
    world.claim(lease_s=EXPIRED)


# What `lived` answers: of every row, the columns that matter.
BEST = {"problem": "square", "speedup": 2.0}
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "Which kernel is the best for each problem?": [BEST | {"run": "first", "policy_step": 0}],
    "Which kernels are the fastest of all runs?": [BEST | {"device": "cpu", "time_ms": 1.0}],
    "Show me that kernel, and the prompt that led to it": [
        BEST | {"prompt": "prompt 1/0", "kernel": "kernel of turn 1"}
    ],
    "Does the reward rise with the version of the policy?": [
        {"policy_step": 0, "turns": 9, "mean_reward": 5.5 / 9, "share_correct": 7 / 9},
        {"policy_step": 1, "turns": 2, "mean_reward": 3.0, "share_correct": 1.0},
    ],
    "Does a second try help?": [
        {"turn": 0, "turns": 7, "mean_reward": 4.5 / 7},
        {"turn": 1, "turns": 4, "mean_reward": 7.0 / 4},
    ],
    "Where does the time go?": [
        {"stage": "collect", "work": "coder", "n": 13, "seconds": 19.5, "seconds_each": 1.5},
        {"stage": "evaluate", "work": "build", "n": 12, "seconds": 5.0},
        {"stage": "evaluate", "work": "check and time", "n": 12, "seconds": 2.5},
    ],
    "How long do updates take, and how long do they wait?": [
        {"run": "first", "updates": 2, "seconds": 4.0, "seconds_waiting": 1.0}
    ],
    "What did the coder cost?": [{"calls": 13, "failed": 1, "usd": 6.5, "usd_per_call": 0.5}],
    "What does a correct kernel cost?": [{"usd": 6.5, "correct_kernels": 9, "usd_each": 6.5 / 9}],
    "What did stored answers and verdicts save?": [
        {"coder_turns": 15, "coder_calls": 13, "coder_reused": 2, "usd_saved": 1.0, "evaluations_reused": 2}
    ],
    "Which suggestions pay, and on which level?": [
        {"level": 1, "suggestion": "unroll the loop", "turns": 9, "mean_reward": 13.5 / 9}
    ],
    "Does a word in the suggestion make a difference?": [
        {"level": 1, "about": "unroll", "turns": 9},
        {"level": 2, "about": "unroll", "turns": 2, "mean_reward": -1.0},
    ],
    "Why do turns fail?": [
        {"source": "fault", "kind": "coder_failed", "turns": 1, "share": 1 / 13},
        {"source": "verdict", "kind": "compile_error", "turns": 1},
        {"source": "verdict", "kind": "hack", "turns": 1},
        {"source": "fault", "kind": "infra", "turns": 1},
    ],
    "Which faults were there, and what was said?": [
        {"fault": "coder_failed", "coder_error": "overloaded", "problem": "cube"},
        {"fault": "infra", "coder_error": None, "problem": "square"},
    ],
    "Which problems has nobody solved yet?": [{"problem": "cube", "turns": 3, "best_reward": -1.0}],
    "How many samples were stale or dropped?": [
        {"drop_reason": "stale", "samples": 4, "updates": 1},
        {"drop_reason": "no_signal", "samples": 1, "updates": 1},
    ],
    "Which groups taught nothing?": [
        {"ordinal": 1, "turns": 4, "mean_reward": 1.0},
        {"ordinal": 2, "turns": 2, "mean_reward": 3.0},
    ],
    "Which turns moved the policy most?": [{"step": step, "advantage": 0.5} for step in (1, 1, 1, 2, 2)],
    "How often does the policy cheat?": [
        {"policy_step": 0, "judged": 9, "hacks": 1, "hack_rate": 1 / 9},
        {"policy_step": 1, "judged": 2, "hacks": 0, "hack_rate": 0.0},
    ],
    "Which rules found something?": [
        {"rule": "slow-loop", "severity": "note", "kernels": 10, "refused": 0},
        {"rule": "calls-reference", "severity": "hard", "kernels": 1, "refused": 1},
    ],
    "What does the queue wait for?": [{"device": "cpu", "state": "running", "evaluations": 1}],
    "How did a run go, update by update?": [
        {"step": 1, "samples": 4, "trained": 3, "checkpoint": "/checkpoints/1"},
        {"step": 2, "samples": 6, "trained": 2, "mean_reward": 3.0},
    ],
}


def test_every_block_of_sql_is_a_question_with_an_answer() -> None:
    assert len(QUESTIONS) == DOCS.count("```sql") == len(ANSWERS)
    assert set(QUESTIONS) == set(ANSWERS)


@pytest.mark.parametrize("title", ANSWERS)
def test_a_question_and_its_answer(lived: World, title: str) -> None:
    sql, promised = QUESTIONS[title]
    with ask(lived.db, sql) as answer:
        assert answer.columns == promised
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    found = [{name: row[name] for name in wanted} for row, wanted in zip(rows, ANSWERS[title], strict=True)]
    assert found == [
        {name: pytest.approx(v) if isinstance(v, float) else v for name, v in row.items()}
        for row in ANSWERS[title]
    ]
