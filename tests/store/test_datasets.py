"""Data sets for other programs: complete, exact, without doubles, in an order that does not change."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import yaml
from store.lived_in import ODD, lived_in
from store.store_world import DEVICE, HARNESS, TOKENS, World

from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import StoreError, UsageError
from kpipe.exchange import datasets
from kpipe.store import catalog, queue, rollouts
from kpipe.store.database import Database
from kpipe.store.datasets import NAMED
from kpipe.store.records import SuggestedTurn, Trajectory

Loaded = list[dict[str, Any]]


def exported(db: Database, folder: Path, what: str, format: str = "parquet", **options: Any) -> Loaded:
    count = datasets.export(db, folder, what, format, **options)  # type: ignore[arg-type]
    found = loaded(folder)
    assert len(found) == count
    return found


def loaded(folder: Path) -> Loaded:
    """As `datasets.load_dataset(folder)` finds it: by the card's glob, the reader by the file's suffix."""
    (config,) = header(folder)["configs"]
    (split,) = config["data_files"]
    assert split["split"] == "train"
    (file,) = folder.glob(split["path"])
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pylist()
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def header(folder: Path) -> dict[str, Any]:
    _, text, _ = (folder / "README.md").read_text().split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_turns_hold_what_the_sampler_returned(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    turns = exported(database, tmp_path / "out", "turns")
    assert [turn["turn_id"] for turn in turns] == sorted(turn["turn_id"] for turn in turns)
    assert len(turns) == 15
    first, odd = turns[0], next(turn for turn in turns if turn["finish_reason"] == "length")
    assert (first["prompt_ids"], first["completion_ids"], first["logprobs"]) == (
        TOKENS.prompt,
        TOKENS.completion,
        TOKENS.logprobs,
    )
    exact = pa.array(odd["logprobs"], pa.float32()).buffers()[1].to_pybytes()
    assert exact == pa.array(ODD.logprobs, pa.float32()).buffers()[1].to_pybytes()
    assert json.loads(odd["sampling"]) == ODD.sampling
    assert (odd["prompt"], odd["kernel"], odd["log"]) == (
        "a\ufffd prompt \u2603",
        "kernel \U0001f40c",
        "boom",
    )
    assert (first["train_step"], first["advantage"], first["speedup"]) == (1, 0.5, 2.0)
    assert isinstance(first["settled_at"], datetime)


def test_groups_hold_their_turns(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    World.make(database, "empty").open_group(2)
    groups = exported(database, tmp_path / "out", "groups")
    assert [len(group["turns"]) for group in groups] == [4, 4, 4, 1, 2, 0]
    assert [(t["member"], t["turn"], t["reward"]) for t in groups[0]["turns"]] == [
        (0, 0, 1.0),
        (0, 1, 2.0),
        (1, 0, 0.5),
        (1, 1, 0.0),
    ]
    assert groups[0]["reference"] == "class Model: ..."


@pytest.mark.parametrize(
    "what", ["turns", "groups", "sft", "v_turn", "v_step", "v_run", "v_queue", "v_leaderboard"]
)
def test_parquet_and_json_lines_hold_the_same(database: Database, tmp_path: Path, what: str) -> None:
    lived_in(database)
    parquet = exported(database, tmp_path / "p", what)
    lines = exported(database, tmp_path / "j", what, "jsonl")
    times = [name for name, value in parquet[0].items() if isinstance(value, datetime)]
    for row in parquet:
        for name in times:
            row[name] = row[name] and row[name].isoformat(timespec="microseconds")
    assert [list(row) for row in parquet] == [list(row) for row in lines]
    assert json.dumps(parquet) == json.dumps(lines)


@pytest.mark.parametrize("what", ["turns", "groups", "v_turn", "v_faults"])
def test_the_card_gives_the_types_of_the_file(database: Database, tmp_path: Path, what: str) -> None:
    lived_in(database)
    exported(database, tmp_path / "out", what)
    (file,) = (tmp_path / "out" / "data").iterdir()
    features = header(tmp_path / "out")["dataset_info"]["features"]
    assert {f["name"]: typed(f) for f in features} == {
        field.name: str(field.type) for field in pq.read_schema(file)
    }


def typed(feature: dict[str, Any]) -> str:
    """A feature of the card as pyarrow spells its type."""
    if "dtype" in feature:
        return {"float64": "double"}.get(feature["dtype"], feature["dtype"])
    if isinstance(feature["list"], str):
        return f"list<element: {feature['list'].replace('float32', 'float')}>"
    inner = ", ".join(f"{f['name']}: {typed(f)}" for f in feature["list"])
    return f"list<element: struct<{inner}>>"


def view_names(db: Database) -> list[str]:
    return sorted(db.read(lambda conn: sa.inspect(conn).get_view_names()))


def test_every_view_can_be_exported(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    names = view_names(database)
    assert len(names) >= 12
    empty = []
    for name in names:
        count = database.read(
            lambda conn, n: conn.execute(sa.select(sa.func.count()).select_from(sa.table(n))).scalar_one(),
            name,
        )
        if count:
            assert len(exported(database, tmp_path / name, name)) == count
        else:
            empty.append(name)
            with pytest.raises(UsageError, match="nothing to export"):
                exported(database, tmp_path / name, name)
    assert empty == ["v_budget", "v_dropped", "v_sample"]


def test_a_view_of_one_run(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    World.make(database, "second").complete_group()
    rows = exported(database, tmp_path / "out", "v_group", runs=["second"])
    assert [row["run"] for row in rows] == ["second"]
    with pytest.raises(StoreError, match="not about runs"):
        exported(database, tmp_path / "no", "v_leaderboard", runs=["second"])


# --- pairs to train on


def say(
    world: World, trajectory: Trajectory, said: str, reward: float, speedup: float, prompt: str = "the prompt"
) -> int:
    """One settled turn that closes its trajectory."""
    ordinal = len(world.db.read(rollouts.turns, trajectory.id))
    suggested = SuggestedTurn(trajectory.id, ordinal, world.base.id, prompt, "template", said, TOKENS)
    (turn,) = world.db.write(rollouts.record_suggestions, [suggested])
    job = world.db.write(
        rollouts.record_kernel,
        turn,
        None,
        f"kernel {turn}",
        problem_id=world.problem_id,
        harness=HARNESS,
        device=DEVICE,
    )
    (claimed,) = world.claim()
    assert claimed.id == job
    verdict = Verdict(Outcome.CORRECT, time_ms=1.0, baseline_ms=speedup, speedup=speedup)
    world.db.write(queue.report, job, claimed.lease, verdict)
    world.settle(turn, reward, last=False)
    return turn


def group_of(world: World, *said: tuple[str, float, float]) -> list[int]:
    _, members = world.open_group(len(said))
    return [say(world, member, *what) for member, what in zip(members, said, strict=True)]


def test_suggestions_that_paid(database: Database, tmp_path: Path) -> None:
    world = World.make(database)
    group_of(world, ("fuse", 1.0, 2.0), ("tile", 0.5, 1.5), ("nothing", 0.0, 1.0))
    best, _ = group_of(world, ("fuse", 1.5, 3.0), ("slower", 0.0, 0.5))
    pairs = exported(database, tmp_path / "out", "sft")
    assert [(p["prompt"], p["completion"], p["speedup"]) for p in pairs] == [
        ("the prompt", "tile", 1.5),
        ("the prompt", "fuse", 3.0),
    ]
    assert pairs[1]["turn_id"] == best
    assert list(pairs[0])[:2] == ["prompt", "completion"]
    assert [p["completion"] for p in exported(database, tmp_path / "more", "sft", min_speedup=2.0)] == [
        "fuse"
    ]


def test_better_and_worse_answers(database: Database, tmp_path: Path) -> None:
    world = World.make(database)
    group_of(world, ("good", 1.0, 2.0), ("middle", 0.5, 1.5), ("bad", -0.5, 0.5), ("good", 1.0, 2.0))
    group_of(world, ("good", 2.0, 3.0), ("bad", -1.0, 0.5))
    pairs = exported(database, tmp_path / "out", "preferences")
    assert [(p["chosen"], p["rejected"], p["chosen_reward"] - p["rejected_reward"]) for p in pairs] == [
        ("good", "middle", 0.5),
        ("middle", "bad", 1.0),
        ("good", "bad", 3.0),
    ]
    assert list(pairs[0])[:3] == ["prompt", "chosen", "rejected"]
    wide = exported(database, tmp_path / "wide", "preferences", min_gap=1.0)
    assert [(p["chosen"], p["rejected"]) for p in wide] == [("middle", "bad"), ("good", "bad")]


def test_only_answers_to_the_same_prompt_are_compared(database: Database, tmp_path: Path) -> None:
    """In later turns the trajectories of a group have seen different kernels."""
    world = World.make(database)
    _, (one, other) = world.open_group(2)
    for ordinal, prompt in enumerate(("the prompt", "its own")):
        say(world, one, f"good {ordinal}", 1.0, 2.0, prompt)
    for ordinal, prompt in enumerate(("the prompt", "another")):
        say(world, other, f"bad {ordinal}", 0.0, 1.0, prompt)
    pairs = exported(database, tmp_path / "out", "preferences")
    assert [(p["chosen"], p["rejected"]) for p in pairs] == [("good 0", "bad 0")]


def test_answers_of_different_groups_are_not_compared(database: Database, tmp_path: Path) -> None:
    world = World.make(database)
    group_of(world, ("good", 1.0, 2.0))
    group_of(world, ("bad", 0.0, 1.0))
    with pytest.raises(UsageError, match="preferences has no rows"):
        exported(database, tmp_path / "out", "preferences")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["sft", "preferences"])
def test_held_out_problems_are_left_out(database: Database, tmp_path: Path, what: str) -> None:
    world = World.make(database)
    world.problem_id, _ = database.write(catalog.add, Problem("suite", 1, "secret", "heldout", "class Model"))
    group_of(world, ("good", 1.0, 2.0), ("bad", 0.0, 0.5))
    with pytest.raises(UsageError, match="has no rows"):
        exported(database, tmp_path / "out", what)


@pytest.mark.parametrize("what", [*NAMED, "v_turn"])
def test_only_the_chosen_run(database: Database, tmp_path: Path, what: str) -> None:
    for name in ("first", "second"):
        group_of(World.make(database, name), (f"good {name}", 1.0, 2.0), (f"bad {name}", 0.0, 0.5))
    runs = {row["run"] for row in exported(database, tmp_path / "out", what, runs=["second"])}
    assert runs == {"second"}


def test_wrong_names(database: Database, tmp_path: Path) -> None:
    lived_in(database)
    with pytest.raises(StoreError, match=r"called 'v_tern' to export. Near: v_turn"):
        exported(database, tmp_path / "out", "v_tern")
    with pytest.raises(StoreError, match="called 'run' to export"):
        exported(database, tmp_path / "out", "run")
    with pytest.raises(UsageError, match="no format 'csv'"):
        exported(database, tmp_path / "out", "turns", "csv")
    assert list(tmp_path.glob("*out*")) == []
