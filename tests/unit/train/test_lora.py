"""Adapters: a small trained part over frozen weights, whose absence is the reference."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from unit.train.making import said, settings, tiny_model, write_base

from kpipe.config import Config
from kpipe.errors import PolicyError, TrainError
from kpipe.policy import lora
from kpipe.policy.checkpoint import read_model
from kpipe.policy.files import digest
from kpipe.store.records import PolicyVersion
from kpipe.train import checkpoint
from kpipe.train.checkpoint import TrainerState
from kpipe.train.learner import Learner
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Row, Update

pytest.importorskip("peft", reason="peft is the extra 'lora'")


def config(**train: Any) -> Config:
    return settings(**{"lora_rank": 4, "kl_beta": 0.05, **train})


def learn(who: Learner, cfg: Config, step: int) -> dict[str, float]:
    rng = random.Random(step)
    rows = [Row(r.prompt, r.completion, r.logprobs, rng.gauss(0, 1)) for r in said(rng, tiny_model(), 8)]
    return Update(who, rows, cfg, seed=3, step=step, watch=Stopwatch(who.device)).run().metrics


def saved(who: Learner, path: Path, base: Path, step: int = 1) -> PolicyVersion:
    path.mkdir()
    checkpoint.write(path, who, base, TrainerState(step, 3, "0", "0"))
    return PolicyVersion(step, 1, step, str(path), digest(path))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([[5, 6, 7, 8]])).logits
    return out


def test_a_new_adapter_is_the_base_and_only_it_learns(tmp_path: Path) -> None:
    base, cfg = write_base(tmp_path / "base"), config()
    who = Learner.load(base, base, cfg.train)
    assert torch.equal(logits(who.model), logits(tiny_model()))
    trained = [name for name, p in who.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    before = {n: p.clone() for n, p in who.model.named_parameters() if not p.requires_grad}
    learn(who, cfg, 1)
    assert all(torch.equal(p, before[n]) for n, p in who.model.named_parameters() if n in before)
    assert not torch.equal(logits(who.model), logits(tiny_model()))


def test_the_reference_is_the_model_without_its_adapter(tmp_path: Path) -> None:
    base, cfg = write_base(tmp_path / "base"), config()
    who = Learner.load(base, base, cfg.train)
    assert who.reference is who.model
    learn(who, cfg, 1)
    with who.frozen_reference() as reference:
        assert torch.equal(logits(reference), logits(tiny_model()))
    assert not torch.equal(logits(who.model), logits(tiny_model()))
    assert learn(who, cfg, 2)["kl"] > 0


def test_the_same_seedless_start_every_time(tmp_path: Path) -> None:
    base, cfg = write_base(tmp_path / "base"), config()
    torch.manual_seed(1)
    one = Learner.load(base, base, cfg.train)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    two = Learner.load(base, base, cfg.train)
    assert all(torch.equal(a, b) for a, b in zip(one.trained().values(), two.trained().values(), strict=True))
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_learning_goes_on_bit_for_bit_from_an_adapter_directory(tmp_path: Path) -> None:
    base, cfg = write_base(tmp_path / "base"), config()
    first = Learner.load(base, base, cfg.train)
    learn(first, cfg, 1)
    versions = [PolicyVersion(9, 1, 0, str(base), digest(base)), saved(first, tmp_path / "one", base)]
    assert not (tmp_path / "one" / "model.safetensors").exists()
    second = checkpoint.resume(versions[1], versions, cfg.train)
    learn(first, cfg, 2)
    learn(second, cfg, 2)
    ours, theirs = first.trained(), second.trained()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert saved(second, tmp_path / "two", base, 2).digest == saved(first, tmp_path / "again", base, 2).digest


def test_whoever_reads_the_checkpoint_gets_the_merged_model(tmp_path: Path) -> None:
    base, cfg = write_base(tmp_path / "base"), config()
    who = Learner.load(base, base, cfg.train)
    learn(who, cfg, 1)
    saved(who, tmp_path / "one", base)
    merged = read_model(tmp_path / "one", "float32")
    assert type(merged) is type(tiny_model())
    assert merged.state_dict().keys() == tiny_model().state_dict().keys()
    torch.testing.assert_close(logits(merged), logits(who.model), atol=1e-4, rtol=0)
    stored = checkpoint.stored_parameters(tmp_path / "one")
    assert all(torch.equal(stored[name], tensor) for name, tensor in who.trained().items())


def test_packing_and_checkpointing_reach_inside_the_adapter(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    ends = []
    for more in ({}, {"packing": True, "gradient_checkpointing": True}):
        cfg = config(max_grad_norm=1e9, **more)
        who = Learner.load(base, base, cfg.train)
        learn(who, cfg, 1)
        ends.append(torch.cat([t.flatten() for t in who.trained().values()]))
    torch.testing.assert_close(*ends, atol=2e-4, rtol=0)


def test_wrong_adapters_are_refused_in_a_sentence(tmp_path: Path) -> None:
    base, wide = write_base(tmp_path / "base"), write_base(tmp_path / "wide", hidden_size=32)
    with pytest.raises(PolicyError, match="no layers named nowhere"):
        Learner.load(base, base, config(lora_targets=("nowhere",)).train)
    full = saved(Learner.load(base, base, settings().train), tmp_path / "full", base)
    with pytest.raises(TrainError, match="holds whole weights"):
        Learner.load(Path(full.path), base, config().train)
    adapter = saved(Learner.load(wide, wide, config().train), tmp_path / "adapter", wide)
    with pytest.raises(PolicyError, match="does not fit Qwen2ForCausalLM"):
        Learner.load(Path(adapter.path), base, config().train)
    (Path(adapter.path) / lora.CONFIG).write_text("{}")
    with pytest.raises(PolicyError, match="does not say which weights"):
        read_model(Path(adapter.path), "float32")
