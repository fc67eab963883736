"""Texts and numbers come back as documented."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.store_world import World

from kpipe.domain.problem import Problem
from kpipe.errors import StoreError
from kpipe.store import blobs, catalog, events, rollouts, runs, tokens, training, workers
from kpipe.store.database import Database
from kpipe.store.records import SuggestedTurn, TokenRecord

Query = Callable[[str], list[tuple[Any, ...]]]

int32 = st.integers(-(2**31), 2**31 - 1)
float32 = st.floats(width=32, allow_nan=False)
completions = st.lists(st.tuples(int32, float32), max_size=50)
any_text = st.text(st.characters(exclude_categories=()), max_size=40)
on_a_database = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(st.lists(int32, max_size=50), completions)
def test_token_frames_are_exact(prompt: list[int], completion: list[tuple[int, float]]) -> None:
    ids, logprobs = [i for i, _ in completion], [p for _, p in completion]
    frame = tokens.encode(prompt, ids, logprobs)
    assert tokens.decode(tokens.CODEC, frame, len(prompt), len(ids)) == (prompt, ids, logprobs)


def test_log_probabilities_keep_every_bit() -> None:
    strange = array("f", [0.0, -0.0, float("-inf"), float("nan"), 1e-45, -3.4e38])
    _, _, back = tokens.decode(tokens.CODEC, tokens.encode([], [0] * 6, strange.tolist()), 0, 6)
    assert array("f", back).tobytes() == strange.tobytes()


def test_frames_that_are_not_what_their_row_says() -> None:
    frame = tokens.encode([1, 2], [3], [-0.5])
    with pytest.raises(ValueError, match="1 completion tokens, but 2"):
        tokens.encode([], [1], [0.0, 0.0])
    with pytest.raises(StoreError, match="wrong length"):
        tokens.decode(tokens.CODEC, frame, 2, 2)
    with pytest.raises(StoreError, match="damaged"):
        tokens.decode(tokens.CODEC, frame[:-3], 2, 1)
    with pytest.raises(StoreError, match="cannot read"):
        tokens.decode("json", frame, 2, 1)


@on_a_database
@given(
    prompt=st.lists(int32, max_size=20),
    completion=completions,
    sampling=st.dictionaries(st.text("abc"), int32),
)
def test_tokens_are_exact_through_the_database(
    world: World, prompt: list[int], completion: list[tuple[int, float]], sampling: dict[str, int]
) -> None:
    record = TokenRecord(prompt, [i for i, _ in completion], [p for _, p in completion], sampling, "length")
    group, (member,) = world.open_group(1)
    suggested = SuggestedTurn(member.id, 0, world.base.id, "prompt", "template", "", record)
    (turn,) = world.db.write(rollouts.record_suggestions, [suggested])
    world.settle(turn, 1.0, last=True)
    samples = next(
        g for g in world.db.read(training.take, world.run.id, 0, 0, 10**6) if g[0].group_id == group.id
    )
    assert samples[0].tokens == record


@on_a_database
@given(any_text)
def test_any_text_is_stored_without_what_no_database_holds(database: Database, text: str) -> None:
    sha = database.write(blobs.put, text)
    stored = database.read(blobs.get, sha)
    assert len(stored) == len(text)
    for kept, was in zip(stored, text, strict=True):
        assert kept == ("\ufffd" if was == "\0" or "\ud800" <= was <= "\udfff" else was)
    assert blobs.digest(stored) == sha


def test_text_lives_once(database: Database, query: Query) -> None:
    a = database.write(blobs.put, "twice\0")
    b = database.write(blobs.put, "twice\ufffd")
    both = database.write(blobs.put_all, ["twice\0", "twice\ufffd", "other", "other"])
    assert a == b
    assert both == {"twice\0": a, "twice\ufffd": a, "other": blobs.digest("other")}
    assert query("SELECT count(*) FROM blob") == [(2,)]


def test_an_unknown_address(database: Database) -> None:
    with pytest.raises(StoreError, match="No text is stored"):
        database.read(blobs.get, "0" * 64)


def test_strange_text_everywhere(world: World) -> None:
    strange, kept = "a\0b\udc80c", "a\ufffdb\ufffdc"
    _, (member, _) = world.open_group()
    suggested = SuggestedTurn(
        member.id,
        0,
        world.base.id,
        strange,
        "t",
        strange,
        TokenRecord([1], [2], [0.0], {"stop": strange}, "stop"),
    )
    (turn,) = world.db.write(rollouts.record_suggestions, [suggested])
    world.implement(turn, strange)
    (stored,) = world.db.read(rollouts.turns, member.id)
    assert (stored.suggestion, stored.kernel) == (kept, kept)
    world.db.write(events.log, "test", "turn", turn, "test", {strange: [strange, 1, None, True]})


def test_problems_are_added_once_and_the_newest_counts(database: Database) -> None:

    def add(source: str, name: str = "square", level: int = 1, split: Any = "train") -> tuple[int, bool]:
        return database.write(catalog.add, Problem("suite", level, name, split, source))

    first, new = add("v1")
    assert new
    assert add("v1") == (first, False)
    second, new = add("v2")
    assert new
    assert second != first
    add("held", name="held", level=2, split="heldout")
    add("a", name="a", level=2)

    def selected(*arguments: Any) -> list[str]:
        return [
            f"{s.problem.name}:{s.problem.source}" for s in database.read(catalog.select, "suite", *arguments)
        ]

    assert selected() == ["square:v2", "a:a", "held:held"]
    assert selected("train") == ["square:v2", "a:a"]
    assert selected("all", (2,)) == ["a:a", "held:held"]
    assert selected("all", (), ("held", "square")) == ["square:v2", "held:held"]
    assert selected("heldout", (1,)) == []
    assert database.read(catalog.get, first).problem.source == "v1"
    assert database.read(catalog.suites) == ["suite"]
    with pytest.raises(StoreError, match="no problem 999"):
        database.read(catalog.get, 999)


def test_runs(database: Database) -> None:
    config = {"a": {"b": [1, 2.5, None, "ü"]}}
    run = database.write(runs.create, "first", config, 2**40, "0.1.0")
    assert database.read(runs.get, "first") == run
    assert (run.config, run.seed) == (config, 2**40)
    assert database.read(runs.only) == run
    with pytest.raises(StoreError, match="a run 'first' already"):
        database.write(runs.create, "first", {}, 0, "0.1.0")
    database.write(runs.update_config, run.id, {"a": 1})
    changed = database.read(runs.get, "first")
    assert changed is not None
    assert changed.config == {"a": 1}
    other = database.write(runs.create, "second", {}, 0, "0.1.0")
    assert [r.name for r in database.read(runs.list_)] == ["first", "second"]
    assert database.read(runs.get, "third") is None
    assert other.id != run.id
    with pytest.raises(StoreError, match="first, second"):
        database.read(runs.only)


def test_workers_are_seen(database: Database) -> None:
    worker = database.write(workers.register, "evaluate", "host", 42, "cpu")
    database.write(workers.heartbeat, worker, {"jobs": 3})
    (row,) = database.read(workers.list_)
    assert (row["id"], row["stage"], row["pid"], row["status"]) == (worker, "evaluate", 42, {"jobs": 3})
    assert row["seen_at"] >= row["started_at"]
