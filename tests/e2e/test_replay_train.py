"""Updates made again from the store: equal bit for bit, and named where somebody changed something."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result
from unit.train.filling import GROUPS_PER_STEP, fill, small_config, start

from kpipe.cli.app import app
from kpipe.errors import UsageError
from kpipe.policy.files import digest
from kpipe.replay.lookup import find_run
from kpipe.replay.retrain import Replayed, Retraining
from kpipe.store import tokens
from kpipe.store.database import Database
from kpipe.train import trainer

STEPS = 3


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three updates, with the optimizer states of the last two."""
    folder = tmp_path_factory.mktemp("trained")
    filled = start(folder, small_config(folder / "out", steps=STEPS, kl_beta=0.01, keep_last=2))
    fill(filled, STEPS * GROUPS_PER_STEP)
    trainer.main(filled.url, filled.run.name)
    return folder


@pytest.fixture
def url(original: Path, tmp_path: Path) -> str:
    """A copy of its database; the checkpoints are those of the original."""
    shutil.copy(original / "kpipe.db", tmp_path / "kpipe.db")
    return f"sqlite:///{tmp_path / 'kpipe.db'}"


def replay(url: str, first: int | None = None, last: int | None = None) -> list[Replayed]:
    with Database.open(url) as db:
        return Retraining(db, find_run(db, "filled"), first, last).run_all()


def change(url: str, sql: str, *values: Any) -> None:
    with Database.open(url) as db:
        db.write(lambda conn: conn.exec_driver_sql(sql, values))


def rows(url: str, sql: str) -> list[Any]:
    with Database.open(url) as db:
        return db.read(lambda conn: [tuple(r) for r in conn.exec_driver_sql(sql)])


def kpipe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


@pytest.mark.parametrize(("first", "last", "steps"), [(None, None, [1, 2, 3]), (3, None, [3]), (1, 1, [1])])
def test_equal_bit_for_bit(url: str, first: int | None, last: int | None, steps: list[int]) -> None:
    before = Path(url.removeprefix("sqlite:///")).read_bytes()
    torch.set_num_threads(2)
    done = replay(url, first, last)
    assert [(r.step, r.first, r.compared) for r in done] == [(s, None, "tensors") for s in steps]
    assert all(r.tolerance == 0.0 for r in done)
    assert Path(url.removeprefix("sqlite:///")).read_bytes() == before


def test_a_pruned_checkpoint_is_compared_by_its_digest(url: str) -> None:
    change(url, "UPDATE policy_version SET path = '/gone' WHERE step IN (2, 3)")
    assert [(r.compared, r.first) for r in replay(url)] == [("tensors", None), *[("digest", None)] * 2]
    change(url, "UPDATE policy_version SET digest = 'other' WHERE step = 3")
    assert replay(url)[-1].first.what == "parameter digest"


def test_a_changed_log_prob_is_named(url: str) -> None:
    ((turn, *frame),) = rows(
        url,
        "SELECT turn_id, codec, data, prompt_len, completion_len FROM tokens JOIN train_sample USING (turn_id)"
        " WHERE step = 2 AND advantage <> 0 LIMIT 1",
    )
    prompt, completion, logprobs = tokens.decode(*frame)
    logprobs[0] -= 0.25
    data = tokens.encode(prompt, completion, logprobs)
    change(url, "UPDATE tokens SET data = ? WHERE turn_id = ?", data, turn)
    equal, different = replay(url)
    assert equal.first is None
    assert (different.step, different.first.what, different.accepted) == (2, "batch hash", False)
    assert "log-probs" in different.why


def test_a_changed_setting_is_named(url: str) -> None:
    change(url, "UPDATE run SET config = json_set(config, '$.train.learning_rate', 0.011)")
    (different,) = replay(url)
    assert different.first.what == "metric learning_rate"
    assert different.first.size == pytest.approx(0.001)
    assert "settings was" in different.why


def test_a_metric_that_somebody_deleted_is_named(url: str) -> None:
    change(url, "UPDATE train_step SET metrics = json_remove(metrics, '$.grad_norm') WHERE step = 1")
    (different,) = replay(url)
    assert (different.first.what, different.first.stored) == ("metric grad_norm", "missing")
    assert (different.accepted, "train_step.metrics" in different.why) == (False, True)


def test_another_discount_is_seen_in_the_returns(url: str) -> None:
    change(url, "UPDATE run SET config = json_set(config, '$.train.gamma', 0.9)")
    (different,) = replay(url)
    assert different.first.what.startswith(("return of turn", "advantage of turn"))
    assert "train.gamma" in different.why


def test_other_parameters_are_named_with_the_tensor(url: str, original: Path, tmp_path: Path) -> None:
    stored = original / "out" / "filled" / "step-000002"
    copy = Path(shutil.copytree(stored, tmp_path / "step-000002"))
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][3] += 0.5
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    change(url, "UPDATE policy_version SET path = ?, digest = ? WHERE step = 2", str(copy), digest(copy))
    different = replay(url)[-1]
    assert (different.step, different.first.what) == (2, "tensor model.norm.weight")
    assert different.first.size == pytest.approx(0.5)
    assert "nothing that was recorded has changed" in different.why


def test_another_build_has_a_tolerance(url: str) -> None:
    """The update says that another torch made it, and its loss is off by rounding."""
    change(
        url,
        "UPDATE train_step SET metrics = json_set(metrics, '$.environment.torch', '1.0',"
        " '$.loss', json_extract(metrics, '$.loss') + 1e-6) WHERE step = 1",
    )
    first = replay(url, 1, 1)[0]
    assert first.accepted
    assert first.first.what == "metric loss"
    assert "torch was 1.0" in first.why
    change(url, "UPDATE train_step SET metrics = json_set(metrics, '$.loss', 5.0) WHERE step = 1")
    assert not replay(url, 1, 1)[0].accepted


def test_another_build_cannot_compare_a_pruned_checkpoint(url: str) -> None:
    change(url, "UPDATE policy_version SET path = '/gone', digest = 'of another build' WHERE step = 1")
    change(
        url,
        "UPDATE train_step SET metrics = json_set(metrics, '$.environment.cpu', 'OTHER',"
        " '$.loss', json_extract(metrics, '$.loss') + 1e-6) WHERE step = 1",
    )
    (found,) = replay(url, 1, 1)
    assert (found.accepted, found.compared, found.first.what) == (True, "metrics only", "metric loss")
    said = kpipe("train", "--run", "filled", "--to", "1", "--db", url)
    assert (said.exit_code, "metrics only" in said.output) == (0, True), said.output
    change(url, "UPDATE train_step SET metrics = json_set(metrics, '$.loss', 5.0) WHERE step = 1")
    assert not replay(url, 1, 1)[0].accepted


def test_a_pruned_start_names_the_possible_ones(url: str) -> None:
    with pytest.raises(UsageError, match="Update 2 cannot be the first") as caught:
        replay(url, 2)
    assert caught.value.fix == "--from can be 1, 3."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run", "fillet"], "Near: filled"),
        (["--run", "filled", "--from", "9"], "Near: 1, 2, 3"),
        (["--run", "filled", "--from", "0"], "Near: 1, 2, 3"),
        (["--run", "filled", "--from", "3", "--to", "2"], "is after --to 2"),
    ],
)
def test_unknown_names_have_neighbours(url: str, options: list[str], message: str) -> None:
    result = kpipe("train", *options, "--db", url)
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message


def test_the_command_says_it_in_words_and_in_json(url: str) -> None:
    said = kpipe("train", "--run", "filled", "--to", "2", "--db", url)
    assert said.exit_code == 0, said.output
    assert "All 2 updates came out equal, bit for bit." in said.output
    change(url, "UPDATE train_step SET metrics = json_set(metrics, '$.grad_norm', 1.0) WHERE step = 2")
    said = kpipe("train", "--run", "filled", "--db", url)
    assert said.exit_code == 1
    assert "First difference: update 2, metric grad_norm: stored 1" in said.output
    as_json = json.loads(kpipe("train", "--run", "filled", "--json", "--db", url).output)
    assert [(r["step"], r["equal"]) for r in as_json] == [(1, True), (2, False)]


def test_rewards_that_were_rescored_are_the_reason(url: str) -> None:
    change(
        url,
        "INSERT INTO event (at, kind, subject, subject_id, actor, detail) VALUES"
        " ('2026-01-01', 'rescored', 'run', 1, 'replay', json('{\"formula\": \"kevin\"}'))",
    )
    change(url, "UPDATE turn SET reward = reward + 1 WHERE reward IS NOT NULL")
    (different,) = replay(url)
    assert different.first.what == "batch hash"
    assert "changed rewards (kevin)" in different.why
