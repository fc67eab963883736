"""LoRA adapters by peft: a small trained part beside frozen weights, and what is stored of it.

A checkpoint of an adapter is peft's own directory (`adapter_config.json`, `adapter_model.safetensors`) with
the tokenizer; the configuration names the directory of the weights underneath.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kpipe.errors import PolicyError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(path: Path) -> bool:
    return (path / CONFIG).is_file()


def is_adapted(model: Any) -> bool:
    return hasattr(model, "disable_adapter")


def attach(model: Any, *, rank: int, alpha: float, targets: Sequence[str]) -> Any:
    """The model, frozen, with a new adapter that changes nothing yet. The same call gives the same bits.

    `targets` are names of layers; empty means every linear layer but the output. Raises PolicyError.
    """
    peft = _peft()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=list(targets) or "all-linear",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return peft.get_peft_model(model, config).eval()
    except ValueError:
        raise PolicyError(
            f"{type(model).__name__} has no layers named {', '.join(targets)}.",
            "Set train.lora_targets to names of its linear layers, such as q_proj, or leave it empty.",
        ) from None


def load(model: Any, path: Path, *, trainable: bool = True) -> Any:
    """The model, frozen, with the adapter at `path`. Raises PolicyError."""
    peft = _peft()
    try:
        return peft.PeftModel.from_pretrained(
            model, path, is_trainable=trainable, local_files_only=True, use_safetensors=True
        ).eval()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError):
        raise PolicyError(
            f"The adapter in {path} does not fit {type(model).__name__}, or is damaged.",
            "Use the adapter with the model that it was trained on.",
        ) from None


def base_path(path: Path) -> str:
    """Directory or hub id of the weights that the adapter at `path` belongs to. Raises PolicyError."""
    try:
        found = json.loads((path / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not found:
        raise PolicyError(
            f"The adapter in {path} does not say which weights it belongs to.",
            f"Put base_model_name_or_path into its {CONFIG}.",
        )
    return str(found)


def save(model: Any, path: Path) -> None:
    """Write the adapter into the directory `path`, the same bytes for the same adapter."""
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)  # a model card without content
    config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])  # a set: its order changes with the process
    (path / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def tensors(model: Any) -> dict[str, Tensor]:
    """The adapter's parameters under the names that its file has."""
    return dict(_peft().get_peft_model_state_dict(model))


def stored_tensors(path: Path) -> dict[str, Tensor]:
    return dict(load_file(path / WEIGHTS))


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise PolicyError(
            "LoRA adapters need the package peft, which is not installed.", "pip install 'kpipe[lora]'"
        ) from None
    return peft
