"""A lack of memory is said in figures."""

from pathlib import Path
from typing import Any

import pytest
import torch
from unit.train.making import settings, tiny_model, write_base

from kpipe.errors import TrainError
from kpipe.train import memory
from kpipe.train.learner import Learner

MILLION = 1_000_000
FULL = {"kl_beta": 0.01}


@pytest.mark.parametrize(
    ("train", "bytes_each"),
    [
        (FULL, 20),
        ({"kl_beta": 0.0}, 16),
        ({"lora_rank": 8, **FULL}, 4),
        ({"lora_rank": 8, "reference": "x", **FULL}, 8),
    ],
)
def test_what_training_needs(train: dict[str, Any], bytes_each: int) -> None:
    assert memory.needed(MILLION, settings(**train).train) == bytes_each * MILLION


def test_a_configuration_tells_the_size(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    (base / "model.safetensors").unlink()
    assert memory.parameters_at(base) == sum(p.numel() for p in tiny_model().parameters())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"
        ),
    ],
)
def test_a_policy_that_does_not_fit_and_what_would(tmp_path: Path, error: RuntimeError) -> None:
    base, cfg = write_base(tmp_path / "base"), settings(**FULL).train
    with pytest.raises(TrainError) as caught, memory.fitting(base, cfg, torch.device("cpu")):
        raise error
    parameters = memory.parameters_at(base)
    assert f"{parameters:,} parameters need" in caught.value.message
    assert "Nothing was consumed" in caught.value.message
    assert "train.kl_beta=0 needs" in caught.value.fix
    assert "train.lora_rank=16 needs" in caught.value.fix


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    cfg = settings().train
    with (
        pytest.raises(RuntimeError, match="shapes differ"),
        memory.fitting(tmp_path, cfg, torch.device("cpu")),
    ):
        raise RuntimeError("shapes differ")


def test_memory_really_ends(tmp_path: Path) -> None:
    """An allocation that no machine has, inside of loading."""
    base = write_base(tmp_path / "base")
    cfg = settings().train
    with pytest.raises(TrainError, match="does not fit"), memory.fitting(base, cfg, torch.device("cpu")):
        torch.empty(1 << 58, dtype=torch.uint8)
    assert Learner.load(base, base, cfg).path == base
