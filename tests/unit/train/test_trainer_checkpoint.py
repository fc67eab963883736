"""A checkpoint brings model and optimizer back bit for bit, and says when it is not what was committed."""

import json
import random
from pathlib import Path

import pytest
import torch
from unit.train.making import learner, said, settings, tiny_model, write_base

from kpipe.config import Config
from kpipe.errors import TrainError
from kpipe.policy.files import digest
from kpipe.store.records import PolicyVersion
from kpipe.train import checkpoint
from kpipe.train.checkpoint import TrainerState
from kpipe.train.learner import Learner
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Row, Update


def learn(who: Learner, config: Config, step: int) -> None:
    rng = random.Random(step)
    rows = [Row(r.prompt, r.completion, r.logprobs, rng.gauss(0, 1)) for r in said(rng, tiny_model(), 8)]
    Update(who, rows, config, seed=3, step=step, watch=Stopwatch(who.device)).run()


def saved(who: Learner, path: Path, base: Path, step: int = 1) -> PolicyVersion:
    path.mkdir()
    checkpoint.write(path, who, base, TrainerState(step, 3, "0", "0"))
    return PolicyVersion(step, 1, step, str(path), digest(path))


def bits(who: Learner) -> list[torch.Tensor]:
    state = who.optimizer.state
    parameters = list(who.model.parameters())
    return [*parameters, *(state[p][key] for p in parameters for key in sorted(state[p]))]


def test_learning_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = settings(kl_beta=0.01)
    base = write_base(tmp_path / "base")
    first = Learner.load(base, base, config.train)
    learn(first, config, 1)
    version = saved(first, tmp_path / "one", base)
    checkpoint.verify(version, [version])
    second = Learner.load(tmp_path / "one", base, config.train)
    checkpoint.restore_optimizer(second, tmp_path / "one")
    assert all(torch.equal(a, b) for a, b in zip(bits(first), bits(second), strict=True))
    learn(first, config, 2)
    learn(second, config, 2)
    assert all(torch.equal(a, b) for a, b in zip(bits(first), bits(second), strict=True))


def test_without_its_optimizer_state_learning_goes_on_differently(tmp_path: Path) -> None:
    """The test above could fail."""
    config = settings(kl_beta=0.0)
    base = write_base(tmp_path / "base")
    first = Learner.load(base, base, config.train)
    learn(first, config, 1)
    saved(first, tmp_path / "one", base)
    second = Learner.load(tmp_path / "one", base, config.train)
    learn(first, config, 2)
    learn(second, config, 2)
    assert not all(torch.equal(a, b) for a, b in zip(bits(first), bits(second), strict=True))


def test_the_reference_is_the_base_and_stays_it(tmp_path: Path) -> None:
    config = settings(kl_beta=0.01)
    base = write_base(tmp_path / "base")
    who = Learner.load(base, base, config.train)
    learn(who, config, 1)
    assert who.reference is not None
    for ours, theirs in zip(who.reference.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.requires_grad


def test_the_store_knows_the_optimizer_state_through_the_digest(tmp_path: Path) -> None:
    config = settings()
    base = write_base(tmp_path / "base")
    one, two = Learner.load(base, base, config.train), Learner.load(base, base, config.train)
    learn(one, config, 1)
    learn(two, config, 1)
    two.optimizer.state[next(two.model.parameters())]["exp_avg"] += 1
    assert saved(one, tmp_path / "one", base).digest != saved(two, tmp_path / "two", base).digest
    state = json.loads((tmp_path / "one" / "trainer_state.json").read_text())
    assert state["step"] == 1
    assert len(state["optimizer_sha256"]) == 64


def test_damage_is_named_with_the_newest_intact_checkpoint(tmp_path: Path) -> None:
    who, base = learner(settings()), write_base(tmp_path / "base")
    versions = [PolicyVersion(9, 1, 0, str(base), digest(base))]
    versions += [saved(who, tmp_path / f"s{step}", base, step) for step in (1, 2, 3)]
    for step in (2, 3):
        (tmp_path / f"s{step}" / "config.json").write_text("{}")
    with pytest.raises(TrainError) as caught:
        checkpoint.verify(versions[3], versions)
    assert f"update 3, {tmp_path / 's3'}, is damaged" in caught.value.message
    assert f"policy.model={tmp_path / 's1'}" in caught.value.fix


def test_when_nothing_is_intact_only_a_backup_helps(tmp_path: Path) -> None:
    gone = PolicyVersion(1, 1, 1, str(tmp_path / "gone"), "0" * 64)
    with pytest.raises(TrainError, match="damaged: there is nothing") as caught:
        checkpoint.verify(gone, [gone])
    assert caught.value.fix == "Restore that directory from a backup."


def test_an_optimizer_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = settings()
    base, wide = write_base(tmp_path / "base"), write_base(tmp_path / "wide", hidden_size=32)
    who = Learner.load(wide, wide, config.train)
    learn(who, config, 1)
    saved(who, tmp_path / "one", wide)
    narrow = Learner.load(base, base, config.train)
    with pytest.raises(TrainError, match="another architecture"):
        checkpoint.restore_optimizer(narrow, tmp_path / "one")


def test_an_architecture_that_is_not_the_base_is_refused(tmp_path: Path) -> None:
    base, deep = write_base(tmp_path / "base"), write_base(tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(TrainError, match="another architecture") as caught:
        Learner.load(deep, base, settings().train)
    assert str(deep) in caught.value.message
    assert str(base) in caught.value.message
