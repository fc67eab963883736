"""What does not fit into a device's memory, and what would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kpipe.config import TrainConfig
from kpipe.errors import TrainError
from kpipe.policy import lora

GIB = 1 << 30
WEIGHT, TRAINED = 4, 16
"""Bytes of a float32 parameter: alone, and with its gradient and AdamW's two means."""

ADAPTER_RANK = 16
"""The rank that is proposed to who cannot train all parameters."""

_NO_MEMORY = "can't allocate memory"
"""How torch words it on the CPU, where it has no exception of its own for it."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY in str(error)
    )


@contextmanager
def fitting(path: Path, cfg: TrainConfig, device: torch.device) -> Iterator[None]:
    """Turn a lack of memory for the policy at `path` itself into a TrainError that says what would fit."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _too_small(parameters_at(path), cfg, device) from None


def needed(parameters: int, cfg: TrainConfig) -> int:
    """Bytes of weights, gradients, optimizer state and reference, without any activation."""
    if cfg.lora_rank:
        return parameters * (WEIGHT + (WEIGHT if cfg.kl_beta and cfg.reference else 0))
    return parameters * (TRAINED + (WEIGHT if cfg.kl_beta else 0))


def parameters_at(path: Path) -> int:
    """How many parameters the checkpoint's configuration describes; nothing is loaded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    base = Path(lora.base_path(path)) if lora.is_adapter(path) else path
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = factory.from_config(AutoConfig.from_pretrained(base, local_files_only=True))
    return sum(p.numel() for p in model.parameters())


def _too_small(parameters: int, cfg: TrainConfig, device: torch.device) -> TrainError:
    ways = []
    if cfg.kl_beta and not cfg.lora_rank:
        ways.append(("train.kl_beta=0", cfg.model_copy(update={"kl_beta": 0.0})))
    if not cfg.lora_rank:
        ways.append((f"train.lora_rank={ADAPTER_RANK}", cfg.model_copy(update={"lora_rank": ADAPTER_RANK})))
    sizes = [f"{name} needs {needed(parameters, other) / GIB:.1f} GiB" for name, other in ways]
    return TrainError(
        f"The policy does not fit into the memory of {device}{_size_of(device)}: {parameters:,} parameters need"
        f" {needed(parameters, cfg) / GIB:.1f} GiB before any activation. Nothing was consumed.",
        f"In a new run, {', '.join([*sizes, 'or take a smaller policy.model'])}.",
    )


def _size_of(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    return f" ({torch.cuda.get_device_properties(device).total_memory / GIB:.0f} GiB)"
