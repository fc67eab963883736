"""`kpipe show`, as it is typed, on both databases."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from store.store_world import World, call
from typer.testing import CliRunner

from kpipe.cli.app import app
from kpipe.errors import StoreError, UsageError
from kpipe.store import rollouts

PAGES = ["run", "run first", "group", "group 1", "trajectory", "trajectory 1", "turn", "turn 1"]
PAGES += ["queue", "workers", "best", "best --run first", "cost", "cost --run first", "turn --run first"]
COMMANDS = ["run", "group", "trajectory", "turn", "queue", "workers", "best", "cost"]


@pytest.fixture
def shown(world: World) -> World:
    """A trained group, a faulty turn, a job that waits; and a second run that has done nothing."""
    world.complete_group()
    world.commit(1, world.take(0), drop={2: "no_signal"})
    _, (first, second) = world.open_group(2)
    failed = call("refused", reply=None)
    turn = world.suggest(first)
    world.db.write(
        rollouts.settle, turn, reward=None, outcome=None, fault="coder_failed", call=failed, last=True
    )
    world.implement(world.suggest(second), "kernel of turn 1", call("key 1"))
    world.implement(world.suggest(second, 1), "waits")
    World.make(world.db, "second")
    return world


def typed(url: str, words: str) -> str:
    result = CliRunner().invoke(app, ["show", *words.split(), "--db", url])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def read(url: str, words: str) -> Any:
    return json.loads(typed(url, f"{words} --json"))


@pytest.mark.parametrize("words", PAGES)
def test_every_page_says_the_same_in_words_and_in_json(shown: World, database_url: str, words: str) -> None:
    page, screen = read(database_url, words), typed(database_url, words)
    assert page
    for name, section in page.items():
        assert section, name
        assert f"{name}\n" in screen


def test_a_run(shown: World, database_url: str) -> None:
    runs = read(database_url, "run")["runs"]
    assert [(r["run"], r["step"], r["turns"], r["faults"]) for r in runs] == [
        ("first", 1, 5, 1),
        ("second", 0, 0, 0),
    ]
    page = read(database_url, "run first")
    assert page["run"][0]["groups_open"] == 1
    assert [(u["step"], u["samples"], u["trained"]) for u in page["updates"]] == [(1, 4, 3)]
    assert [(o["kind"], o["turns"]) for o in page["outcomes"]] == [("correct", 4), ("coder_failed", 1)]
    assert {(t["stage"], t["work"]) for t in page["time"]} >= {("collect", "coder"), ("train", "update")}


def test_a_group_its_trajectories_and_their_turns(shown: World, database_url: str) -> None:
    assert [g["group_id"] for g in read(database_url, "group")["groups"]] == [2, 1]
    assert read(database_url, "group --run second") == {"groups": []}
    page = read(database_url, "group 1")
    assert (page["group"][0]["turns"], page["group"][0]["highest_reward"]) == (4, 2.0)
    assert [(t["trajectory_id"], t["reward"]) for t in page["trajectories"]] == [(1, 3.0), (2, 0.5)]
    turns = read(database_url, "trajectory 1")["turns"]
    assert [(t["turn_id"], t["result"], t["reward"]) for t in turns] == [
        (1, "correct", 1.0),
        (2, "correct", 2.0),
    ]
    assert [t["result"] for t in read(database_url, "turn")["turns"]][:3] == [
        "evaluating",
        "evaluating",
        "coder_failed",
    ]


def test_a_turn(shown: World, database_url: str) -> None:
    page = read(database_url, "turn 2")
    assert page["suggestion"] == "unroll the loop"
    assert page["kernel"] == "kernel of turn 2"
    assert page["log"] == "all right"
    assert page["coder"][0]["usd"] == 0.5
    assert page["evaluation"][0]["speedup"] == 2.0
    assert page["findings"][0]["rule"] == "slow-loop"
    assert page["updates"][0]["drop_reason"] == "no_signal"
    assert "evaluation" not in read(database_url, "turn 5")


def test_queue_workers_best_and_cost(shown: World, database_url: str) -> None:
    queue = read(database_url, "queue")
    assert [(q["device"], q["state"], q["evaluations"]) for q in queue["queue"]] == [("cpu", "queued", 1)]
    assert [j["problem"] for j in queue["jobs"]] == ["square"]
    workers = read(database_url, "workers")["workers"]
    assert {w["stage"] for w in workers} == {"evaluate"}
    assert all(w["seen_s_ago"] >= 0 for w in workers)
    assert [(b["run"], b["problem"], b["speedup"]) for b in read(database_url, "best")["best"]] == [
        ("first", "square", 2.0)
    ]
    assert read(database_url, "best --run second") == {"best": []}
    cost = read(database_url, "cost --run first")
    assert (cost["coder"][0]["calls"], cost["coder"][0]["failed"]) == (5, 1)
    assert (cost["reused"][0]["coder_reused"], cost["reused"][0]["evaluations_reused"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run fist", "There is no run 'fist'. Near: first. `kpipe show run` lists all runs."),
        ("cost --run frist", "There is no run 'frist'. Near: first. `kpipe show run` lists all runs."),
        ("best --run zzz", "There is no run 'zzz'. `kpipe show run` lists all runs."),
        ("turn --run secnd", "There is no run 'secnd'. Near: second. `kpipe show run` lists all runs."),
        ("turn 99", "There is no turn 99. Near: 7."),
        ("turn 0", "There is no turn 0. Near: 1."),
        ("group 17", "There is no group 17. Near: 2."),
        ("trajectory 99999999999999", "There is no trajectory 99999999999999. Near: 4."),
        ("run --watch 0", "--watch 0 is no time to wait. Give a number of seconds above 0."),
    ],
)
def test_what_is_not_there_has_neighbours(shown: World, database_url: str, words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(database_url, words)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_an_empty_database_shows_that_it_is_empty(database_url: str) -> None:
    for words in COMMANDS:
        assert "none" in typed(database_url, words)
    with pytest.raises(UsageError, match="The database has no turn yet"):
        typed(database_url, "turn 1")


def test_no_database_is_made(tmp_path: Any) -> None:
    with pytest.raises(StoreError, match="There is no database"):
        typed(f"sqlite:///{tmp_path / 'none.db'}", "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("every", [[], ["0.01"]])
def test_watching_shows_again_what_has_changed_until_interrupted(
    shown: World, database_url: str, every: list[str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "kpipe",
        "show",
        "run",
        "--watch",
        *every,
        "--json",
        "--db",
        database_url,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert [r["run"] for r in json.loads(watch.stdout.readline())["runs"]] == ["first", "second"]
        World.make(shown.db, "third")
        for line in watch.stdout:
            if len(json.loads(line)["runs"]) == 3:
                break
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
        assert watch.wait() == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["show", command, "--help"])
    assert f"Example: kpipe show {command}" in result.output
