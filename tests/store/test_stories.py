"""A trajectory as people read it, from both databases."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from store.store_world import World

from kpipe.errors import UsageError
from kpipe.replay import follow
from kpipe.replay.lookup import check_turn, find_story


@pytest.fixture
def trained(world: World) -> World:
    world.complete_group()
    world.commit(1, world.take(0))
    return world


def text_of(world: World, trajectory: int, turn: int | None = None, *, ask: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system="standard")
    follow.step_through(console, find_story(world.db, trajectory), turn, ask=ask)
    return out.getvalue()


def test_a_story_tells_everything(trained: World) -> None:
    story = find_story(trained.db, 1)
    assert (story.run, story.problem, story.group, story.member) == ("first", "square", 0, 0)
    first, second = story.turns
    assert (first.prompt, first.suggestion, first.kernel) == (
        "prompt 1/0",
        "unroll the loop",
        "kernel of turn 1",
    )
    assert (first.reward, second.reward) == (1.0, 2.0)
    assert first.verdict is not None
    assert (first.verdict.speedup_low, first.verdict.log) == (1.9, "all right")
    assert first.verdict.findings[0].rule == "slow-loop"
    assert [(u.run, u.step, u.advantage, u.weight) for u in first.uses] == [("first", 1, 0.5, 1.0)]
    assert (first.coder, first.usd) == ("gpt", 0.5)


def test_the_diff_is_against_the_kernel_before(trained: World) -> None:
    tree = follow.as_json(find_story(trained.db, 1), None)
    assert tree["turns"][0]["diff"][-2:] == ["-class Model: ...", "+kernel of turn 1"]
    assert tree["turns"][1]["diff"][-2:] == ["-kernel of turn 1", "+kernel of turn 2"]
    assert [t["ordinal"] for t in follow.as_json(find_story(trained.db, 1), 1)["turns"]] == [1]


def test_a_fault_has_no_kernel_to_start_from(world: World) -> None:
    world.complete_group(((None, 1.0), (0.5, 0.5)))
    story = find_story(world.db, 1)
    assert follow.parents(story) == ["class Model: ...", "class Model: ..."]
    assert "fault: infra, no reward" in follow.result_lines(story.turns[0])


def test_the_pages_have_colours_and_all_parts(trained: World) -> None:
    page = text_of(trained, 1)
    for part in ("prompt 1/0", "unroll the loop", "all right", "note slow-loop: a loop", "reward 1"):
        assert part in page
    assert "correct, speedup 2 (1.9 to 2.1), 1 ms" in page
    assert "update 1 of run first: return 1, advantage 0.5, weight 1" in page
    assert "\x1b[32m+kernel of turn 1" in page
    assert "\x1b[31m-class Model: ..." in page
    assert "prompt 1/1" in page


def test_one_turn_alone(trained: World) -> None:
    assert "prompt 1/0" not in text_of(trained, 1, turn=1)


@pytest.mark.parametrize(("typed", "goes_on"), [("\n", True), ("q\n", False)])
def test_stepping(trained: World, monkeypatch: pytest.MonkeyPatch, typed: str, goes_on: bool) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    page = text_of(trained, 1, ask=True)
    assert "prompt 1/0" in page
    assert ("prompt 1/1" in page) is goes_on


def test_unknown_ids_have_neighbours(trained: World) -> None:
    with pytest.raises(UsageError, match=r"no trajectory 9 .* Near: 1, 2\."):
        find_story(trained.db, 9)
    with pytest.raises(UsageError, match=r"no turn 2\. Near: 0, 1\."):
        check_turn(find_story(trained.db, 1), 2)
