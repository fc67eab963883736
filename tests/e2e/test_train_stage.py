"""The train stage over a database full of complete groups, from its start to its last update."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from unit.train.filling import GROUPS_PER_STEP, Filled, fill, small_config, start
from unit.train.making import write_base

from kpipe.config.loading import read_preset
from kpipe.errors import KpipeError, TrainError, UsageError
from kpipe.policy.checkpoint import read_model
from kpipe.policy.files import digest
from kpipe.replay.retrain import Retraining
from kpipe.store import events, policies, runs, training
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion
from kpipe.train import trainer
from kpipe.train.checkpoint import stored_parameters

HANG_S = 120.0


@pytest.fixture
def filled(tmp_path: Path) -> Callable[..., Filled]:
    """A run with the groups of `steps` updates; keyword arguments are of the train section."""

    def make(steps: int, *, collect: dict[str, Any] | None = None, **train: Any) -> Filled:
        made = start(tmp_path, small_config(tmp_path / "out", steps=steps, collect=collect, **train))
        fill(made, steps * GROUPS_PER_STEP)
        return made

    return make


def read(filled: Filled, fn: Callable[..., Any], *arguments: Any) -> Any:
    db = Database.open(filled.url)
    try:
        return db.read(fn, *arguments)
    finally:
        db.close()


def rows(filled: Filled, sql: str) -> list[Any]:
    return read(filled, lambda conn: [tuple(r) for r in conn.exec_driver_sql(sql)])


def train(filled: Filled) -> None:
    trainer.main(filled.url, filled.run.name)


def extend(filled: Filled, steps: int) -> None:
    """Ask for more updates, and add the groups for them."""
    config = {**filled.run.config, "train": {**filled.run.config["train"], "max_steps": steps}}
    db = Database.open(filled.url)
    try:
        db.write(runs.update_config, filled.run.id, config)
    finally:
        db.close()


def versions(filled: Filled) -> list[PolicyVersion]:
    return list(read(filled, policies.list_, filled.run.id))


def path_of(filled: Filled, step: int) -> Path:
    return filled.output / filled.run.name / f"step-{step:06d}"


def test_every_turn_is_consumed_once_and_every_update_published(filled: Callable[..., Filled]) -> None:
    run = filled(3, kl_beta=0.01)
    train(run)
    assert [v.step for v in versions(run)] == [0, 1, 2, 3]
    assert [v.digest for v in versions(run)] == [digest(path_of(run, step)) for step in range(4)]
    turns = rows(run, "SELECT count(*) FROM turn")
    assert rows(run, "SELECT count(DISTINCT turn_id) FROM train_sample") == turns
    trained = rows(run, "SELECT advantage, weight FROM train_sample WHERE drop_reason IS NULL")
    assert trained
    assert all(advantage is not None and weight > 0 for advantage, weight in trained)
    faults = rows(
        run,
        "SELECT DISTINCT drop_reason FROM train_sample JOIN turn ON turn.id = turn_id WHERE reward IS NULL",
    )
    assert faults == [("infra",)]


def test_the_checkpoint_is_a_transformers_model_that_learned(filled: Callable[..., Filled]) -> None:
    run = filled(2)
    train(run)
    model: Any = AutoModelForCausalLM.from_pretrained(path_of(run, 2), dtype=torch.float32)
    base: Any = AutoModelForCausalLM.from_pretrained(path_of(run, 0), dtype=torch.float32)
    assert type(model) is type(base)
    assert not torch.equal(model.model.embed_tokens.weight, base.model.embed_tokens.weight)
    before, after = (path_of(run, step) / "tokenizer.json" for step in (0, 2))
    assert before.read_bytes() == after.read_bytes()
    assert not [f for f in path_of(run, 2).rglob("*") if f.suffix in {".bin", ".pt", ".pkl", ".pth"}]


def test_every_metric_is_a_number_that_json_knows(filled: Callable[..., Filled]) -> None:
    run = filled(1, kl_beta=0.01)
    train(run)
    ((step, metrics),) = read(run, training.steps, run.run.id)
    assert step == 1
    json.dumps(metrics, allow_nan=False)
    assert metrics["samples"] == 12
    assert metrics["samples_trained"] + sum(metrics["dropped"].values()) == 12
    assert metrics["optimizer_steps"] > 0
    assert metrics["tokens_per_second"] > 0
    assert metrics["seconds"] >= metrics["seconds_fwd_bwd"] > 0


def test_a_restart_between_updates_changes_nothing(filled: Callable[..., Filled], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kl_beta": 0.01, "warmup_steps": 2}
    whole = filled(3, **settings)
    train(whole)
    place = tmp_path / "parts"
    place.mkdir()
    parts = start(place, small_config(place / "out", steps=1, **settings))
    fill(parts, 3 * GROUPS_PER_STEP)
    for steps in (1, 2, 3):
        extend(parts, steps)
        train(parts)
    assert [v.digest for v in versions(parts)] == [v.digest for v in versions(whole)]


def test_a_finished_run_stays_as_it_is(filled: Callable[..., Filled]) -> None:
    run = filled(1)
    train(run)
    before = versions(run)
    train(run)
    assert versions(run) == before


def test_learning_rate_zero_publishes_unchanged_parameters(filled: Callable[..., Filled]) -> None:
    run = filled(2, learning_rate=0.0, kl_beta=0.01)
    train(run)
    base, last = (load_file(path_of(run, step) / "model.safetensors") for step in (0, 2))
    assert base.keys() == last.keys()
    assert all(torch.equal(base[name], last[name]) for name in base)
    assert read(run, training.steps, run.run.id)[-1][1]["grad_norm"] > 0


def test_groups_that_are_too_old_are_recorded_as_stale(filled: Callable[..., Filled]) -> None:
    """Groups for two updates by policy 0, of which only one may use them."""
    run = filled(2, collect={"max_off_policy_steps": 0})
    with background(run) as process:
        wait_until(lambda: len(versions(run)) == 2, process)
        fill(run, GROUPS_PER_STEP, seed=1, version=versions(run)[1])
        output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, output
    stale = "SELECT step, count(*) FROM train_sample WHERE drop_reason = 'stale' GROUP BY 1"
    assert rows(run, stale) == [(2, 12)]
    used = rows(
        run,
        "SELECT DISTINCT policy_version.step FROM train_sample JOIN turn ON turn.id = turn_id"
        " JOIN policy_version ON policy_version.id = policy_version_id"
        " WHERE train_sample.step = 2 AND drop_reason IS NOT 'stale'",
    )
    assert used == [(1,)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(filled: Callable[..., Filled], number: signal.Signals) -> None:
    run = filled(1)
    extend(run, 5)
    with background(run) as process:
        wait_until(lambda: len(versions(run)) == 2, process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert len(versions(run)) == 2


def test_old_optimizer_states_are_removed(filled: Callable[..., Filled]) -> None:
    run = filled(4, keep_last=2)
    train(run)
    assert [s for s in range(5) if path_of(run, s).exists()] == [0, 1, 2, 3, 4]
    assert [s for s in range(5) if (path_of(run, s) / "trainer").exists()] == [3, 4]


def test_weights_that_nobody_needs_are_removed(filled: Callable[..., Filled]) -> None:
    """Groups that may be one version old: the newest three versions stay, and the base."""
    run = filled(1, keep_last=2, collect={"max_off_policy_steps": 1})
    train(run)
    for step in range(2, 6):
        extend(run, step)
        fill(run, GROUPS_PER_STEP, seed=step, version=versions(run)[-1])
        train(run)
    assert [s for s in range(6) if path_of(run, s).exists()] == [0, 3, 4, 5]


def test_what_a_killed_trainer_left_is_swept(filled: Callable[..., Filled]) -> None:
    run = filled(1)
    root = run.output / run.run.name
    for name in (".draft-step-000001", "step-000001", ".removed-step-000000"):
        (root / name).mkdir()
        (root / name / "model.safetensors").write_bytes(b"half")
    train(run)
    assert sorted(p.name for p in root.iterdir() if p.is_dir()) == ["step-000000", "step-000001"]
    assert digest(path_of(run, 1)) == versions(run)[1].digest


def test_checkpoints_of_another_database_are_set_aside(filled: Callable[..., Filled]) -> None:
    run = filled(1)
    for step in (1, 30):
        path_of(run, step).mkdir()
        (path_of(run, step) / "model.safetensors").write_bytes(b"precious")
    train(run)
    aside = run.output / run.run.name / "set-aside-1"
    assert sorted(p.name for p in aside.iterdir()) == ["step-000001", "step-000030"]
    assert digest(path_of(run, 1)) == versions(run)[1].digest


def test_an_alarm_is_one_event_at_its_onset(filled: Callable[..., Filled]) -> None:
    """Groups by the policy of another seed: nothing that was sampled is likely under this one."""
    run = filled(3)
    rebase(run, seed=1)
    train(run)
    raised = read(run, events.details, "alarm", "run", run.run.id)
    before, onsets = set(), []
    for step, metrics in read(run, training.steps, run.run.id):
        onsets += [(step, name) for name in metrics["alarms"] if name not in before]
        before = set(metrics["alarms"])
    assert sorted((d["step"], d["alarm"]) for d in raised) == sorted(onsets)
    assert "low_ess" in {name for _, name in onsets}
    assert any("effective sample size" in d["message"] for d in raised)


def test_weights_and_biases_needs_no_network(filled: Callable[..., Filled]) -> None:
    pytest.importorskip("wandb", reason="wandb is in the extra 'tracking'")
    run = filled(1, sinks=("wandb",))
    train(run)
    (kept,) = (run.output / run.run.name / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"grad_norm" in kept.read_bytes()


def test_tensorboard_has_every_update_once_whatever_was_killed(filled: Callable[..., Filled]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is in the extra 'tracking'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = filled(1, sinks=("tensorboard",))
    train(run)
    extend(run, 2)
    fill(run, GROUPS_PER_STEP, seed=5)
    train(run)
    written = EventAccumulator(str(run.output / run.run.name / "tensorboard")).Reload()
    stored = dict(read(run, training.steps, run.run.id))
    for name in ("loss", "grad_norm", "entropy"):
        assert [(e.step, e.value) for e in written.Scalars(name)] == [
            (step, pytest.approx(stored[step][name], rel=1e-6)) for step in (1, 2)
        ]


def test_a_sink_that_is_not_installed_is_one_sentence(
    filled: Callable[..., Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = filled(1, sinks=("wandb",))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrainError, match="not installed") as caught:
        train(run)
    assert "kpipe[tracking]" in caught.value.fix
    assert len(versions(run)) == 1


@pytest.mark.parametrize("preset", ["seed", "kevin", "drkernel"])
def test_a_preset_trains(filled: Callable[..., Filled], preset: str) -> None:
    """The update of the preset, over fewer and smaller samples."""
    chosen = read_preset(preset)["train"]
    for name in ("batch_size", "mini_batch_size", "gradient_accumulation_steps", "max_steps"):
        chosen.pop(name, None)
    run = filled(1, **chosen)
    train(run)
    ((_, metrics),) = read(run, training.steps, run.run.id)
    assert metrics["optimizer_steps"] > 0
    assert metrics["skipped_steps"] == 0


LEAN = {"packing": True, "max_tokens_per_micro_batch": 64, "gradient_checkpointing": True}


@pytest.mark.parametrize("how", [LEAN, {**LEAN, "lora_rank": 2}], ids=["packed", "adapter"])
def test_with_less_memory_a_restart_changes_nothing_and_a_replay_agrees(
    filled: Callable[..., Filled], tmp_path: Path, how: dict[str, Any]
) -> None:
    """The checkpoints say nothing of how they were made: whoever loads them needs to know neither."""
    if "lora_rank" in how:
        pytest.importorskip("peft", reason="peft is the extra 'lora'")
    whole = filled(2, kl_beta=0.01, **how)
    train(whole)
    place = tmp_path / "parts"
    place.mkdir()
    parts = start(place, small_config(place / "out", steps=1, kl_beta=0.01, **how))
    fill(parts, 2 * GROUPS_PER_STEP)
    for steps in (1, 2):
        extend(parts, steps)
        train(parts)
    ours, theirs = (stored_parameters(path_of(run, 2)) for run in (whole, parts))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    db = Database.open(whole.url)
    replayed = Retraining(db, whole.run, None, None).run_all()
    db.close()
    assert [(r.step, r.first, r.compared) for r in replayed] == [(1, None, "tensors"), (2, None, "tensors")]
    model: Any = read_model(path_of(whole, 2), "float32")
    assert model.config._attn_implementation == "sdpa"
    assert torch.isfinite(model(torch.tensor([[5, 6, 7]])).logits).all()


def test_kl_may_hold_to_another_policy(filled: Callable[..., Filled], tmp_path: Path) -> None:
    other = write_base(tmp_path / "other", seed=3)
    run = filled(1, kl_beta=0.01, reference=str(other))
    train(run)
    ((_, metrics),) = read(run, training.steps, run.run.id)
    assert metrics["kl"] > 0.1


@pytest.mark.parametrize(
    ("shape", "words"),
    [({"vocab_size": 40}, "vocabulary of 40 tokens, the policy one of 61"), (None, "no model")],
)
def test_a_reference_that_does_not_fit_is_refused(
    filled: Callable[..., Filled], tmp_path: Path, shape: dict[str, int] | None, words: str
) -> None:
    if shape:
        write_base(tmp_path / "other", **shape)
    run = filled(1, kl_beta=0.01, reference=str(tmp_path / "other"))
    with pytest.raises(KpipeError, match=words):
        train(run)
    assert len(versions(run)) == 1


def test_tokens_that_the_policy_does_not_know_consume_nothing(filled: Callable[..., Filled]) -> None:
    run = filled(1)
    rebase(run, vocab_size=40)
    with pytest.raises(TrainError, match=r"another tokenizer made them\. Nothing was consumed"):
        train(run)
    assert len(versions(run)) == 1
    assert rows(run, "SELECT count(*) FROM train_sample") == [(0,)]


def test_a_group_of_faults_only_is_consumed_and_teaches_nothing(filled: Callable[..., Filled]) -> None:
    run = filled(1, kl_beta=0.01)
    write(run, "UPDATE turn SET reward = NULL, outcome = NULL, fault = 'infra'")
    train(run)
    ((_, metrics),) = read(run, training.steps, run.run.id)
    assert metrics["dropped"] == {"infra": 12}
    assert (metrics["samples_trained"], metrics["optimizer_steps"]) == (0, 0)
    before, after = (load_file(path_of(run, step) / "model.safetensors") for step in (0, 1))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "trainer/optimizer.safetensors", "trainer_state.json"]
)
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_a_damaged_checkpoint_is_refused_by_name(filled: Callable[..., Filled], file: str, how: str) -> None:
    run = filled(2)
    train(run)
    victim = path_of(run, 2) / file
    if how == "remove":
        victim.unlink()
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    extend(run, 3)
    with pytest.raises(TrainError, match="damaged") as caught:
        train(run)
    assert str(path_of(run, 2)) in caught.value.message
    assert f"policy.model={path_of(run, 1)}" in caught.value.fix
    assert len(versions(run)) == 3


@pytest.mark.parametrize("kl_beta", [0.0, 0.01])
def test_a_checkpoint_of_another_architecture_is_refused(
    filled: Callable[..., Filled], tmp_path: Path, kl_beta: float
) -> None:
    """Somebody put the intact checkpoint of another run in the place of this run's."""
    other = filled(1)
    rebase(other, hidden_size=32)
    train(other)
    place = tmp_path / "here"
    place.mkdir()
    run = start(place, small_config(place / "out", steps=2, kl_beta=kl_beta))
    path_of(other, 1).rename(path_of(run, 1))
    db = Database.open(run.url)
    db.write(policies.add, run.run.id, 1, str(path_of(run, 1)), digest(path_of(run, 1)))
    db.close()
    with pytest.raises(TrainError, match="another architecture") as caught:
        train(run)
    assert str(path_of(run, 1)) in caught.value.message


def test_one_trainer_at_a_time(filled: Callable[..., Filled]) -> None:
    run = filled(1)
    extend(run, 5)
    with background(run) as process:
        wait_until(lambda: len(versions(run)) == 2, process)
        with pytest.raises(TrainError, match="Another trainer"):
            train(run)


def test_a_run_that_does_not_exist(filled: Callable[..., Filled]) -> None:
    with pytest.raises(UsageError, match="no run 'nobody'"):
        trainer.main(filled(1).url, "nobody")


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """Files may not grow beyond 1 MiB, which the checkpoint of this model does and the database does not."""
    run = start(tmp_path, small_config(tmp_path / "out", steps=1))
    rebase(run, hidden_size=256, intermediate_size=512)
    fill(run, GROUPS_PER_STEP)
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "sys.argv[0] = 'kpipe'; runpy.run_module('kpipe', run_name='__main__')"
    )
    failed = subprocess.run([sys.executable, "-c", code, *command(run)[3:]], capture_output=True, text=True)
    assert failed.returncode == 2, failed.stderr
    assert "cannot be written" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert len(versions(run)) == 1
    train(run)
    assert len(versions(run)) == 2


def command(filled: Filled) -> list[str]:
    return [sys.executable, "-m", "kpipe", "train", "--run", filled.run.name, "--db", filled.url]


@contextmanager
def background(filled: Filled) -> Iterator[subprocess.Popen[str]]:
    """`kpipe train` as a process of its own; killed at the end if it still runs."""
    with subprocess.Popen(
        command(filled), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANG_S
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rebase(filled: Filled, **shape: int) -> None:
    """Give the run a base model of another shape."""
    made = digest(write_base(path_of(filled, 0), **shape))
    write(filled, f"UPDATE policy_version SET digest = '{made}'")


def write(filled: Filled, sql: str) -> None:
    db = Database.open(filled.url)
    db.write(lambda conn: conn.exec_driver_sql(sql))
    db.close()
