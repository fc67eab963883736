"""The policy in training: its parameters, the optimizer, the frozen reference, and where they live.

Parameters, gradients and optimizer state are float32 always. `train.dtype = "bfloat16"` computes the
forward and backward passes in bfloat16 (autocast) over those float32 master weights. Dropout is off: the
ratio must compare one policy with another, not one dropout mask with another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from kpipe.config import TrainConfig
from kpipe.errors import TrainError
from kpipe.policy import lora, packing
from kpipe.policy.checkpoint import check_architecture, choose_device, locate, read_model
from kpipe.policy.logprobs import completion_logprobs
from kpipe.train.memory import fitting

MATRIX_DIMS = 2


@dataclass
class Learner:
    """`model` is what is trained. `reference` is None when there is no KL term, and `model` itself when
    that is the reference without its adapter. `path` is where the base lies.
    """

    model: Any
    reference: Any | None
    optimizer: torch.optim.AdamW
    device: torch.device
    half: bool
    packed: bool = False
    path: Path = Path()

    @classmethod
    def load(cls, path: Path, base: Path, cfg: TrainConfig) -> Learner:
        """The checkpoint at `path` with a fresh optimizer; `base` is policy version 0 of its run.

        Raises PolicyError for a model that cannot be loaded, TrainError when the two differ in architecture.
        """
        device = choose_device(cfg.device)
        with fitting(base, cfg, device):
            model = _adapted(path, base, cfg, device) if cfg.lora_rank else _whole(path, base, device)
            reference = _reference(model, base, cfg, device)
        if cfg.packing:
            packing.enable(model)
            if reference is not None and reference is not model:
                packing.enable(reference)
        if cfg.gradient_checkpointing:
            checkpoint_activations(model)
        half = cfg.dtype == "bfloat16"
        return cls(model, reference, make_optimizer(model, cfg), device, half, cfg.packing, base)

    @contextmanager
    def frozen_reference(self) -> Iterator[Any]:
        """The model that KL holds to. Call only where there is one."""
        if self.reference is self.model:
            with self.model.disable_adapter():  # type: ignore[union-attr]
                yield self.model
        else:
            yield self.reference

    @property
    def size(self) -> int:
        """Parameters that a token meets: all of them, frozen ones too."""
        return sum(p.numel() for p in self.model.parameters())

    def trained(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the model: all parameters, or those of the adapter."""
        return (
            lora.tensors(self.model) if lora.is_adapted(self.model) else dict(self.model.named_parameters())
        )

    def logprobs(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        temperature: float,
        *,
        entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `completion_logprobs`; float32 whatever the passes compute in."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            return completion_logprobs(
                model, prompts, completions, temperature, entropy=entropy, packed=self.packed
            )

    def set_learning_rate(self, cfg: TrainConfig, step: int) -> float:
        """Linear warm-up over the first `warmup_steps` updates; updates count from 1. Returns the rate."""
        rate = cfg.learning_rate * min(1.0, step / cfg.warmup_steps if cfg.warmup_steps else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def step(self, max_norm: float) -> float | None:
        """Clip the gradient, move the parameters, forget the gradient.

        Returns the norm before clipping, or None when it was not finite: then nothing moved.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item() if finite else None


def _whole(path: Path, base: Path, device: torch.device) -> Any:
    model = read_model(path, "float32", device)
    check_architecture(model, path)
    if path != base and not lora.is_adapter(path):
        _check_same_architecture(model, path, base)
    return model


def _adapted(path: Path, base: Path, cfg: TrainConfig, device: torch.device) -> Any:
    """The base with an adapter: the one at `path`, or a new one when `path` is the base."""
    model = read_model(base, "float32", device)
    check_architecture(model, base)
    if path == base:
        return lora.attach(model, rank=cfg.lora_rank, alpha=cfg.lora_alpha, targets=cfg.lora_targets)
    if not lora.is_adapter(path):
        raise TrainError(
            f"The checkpoint {path} holds whole weights, and train.lora_rank asks for an adapter.",
            "Set train.lora_rank=0, or start a new run with --run NAME.",
        )
    return lora.load(model, path)


def _reference(model: Any, base: Path, cfg: TrainConfig, device: torch.device) -> Any | None:
    if cfg.kl_beta == 0:
        return None
    if not cfg.reference:
        return model if cfg.lora_rank else read_model(base, "float32", device).requires_grad_(False)
    path = locate(cfg.reference)
    reference = read_model(path, "float32", device).requires_grad_(False)
    check_architecture(reference, path)
    ours, theirs = (m.get_input_embeddings().weight.shape[0] for m in (packing.base_of(model), reference))
    if ours != theirs:
        raise TrainError(
            f"The reference {path} has a vocabulary of {theirs:,} tokens, the policy one of {ours:,}.",
            "Set train.reference to a model with the policy's tokenizer.",
        )
    return reference


def checkpoint_activations(model: Any) -> None:
    """Keep only the input of each layer for the backward pass. Raises TrainError where that is not possible."""
    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise TrainError(
            f"{type(packing.base_of(model)).__name__} knows no gradient checkpointing.",
            "Set train.gradient_checkpointing=false.",
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.training = True  # of the layer only: its parts stay in evaluation mode, without dropout


def make_optimizer(model: Any, cfg: TrainConfig) -> torch.optim.AdamW:
    """AdamW; only matrices decay, not norms and biases."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= MATRIX_DIMS], "weight_decay": cfg.weight_decay},
        {"params": [p for p in parameters if p.dim() < MATRIX_DIMS], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.adam_beta1, cfg.adam_beta2))


def _check_same_architecture(model: Any, path: Path, base: Path) -> None:
    """Compare `model` with what the configuration at `base` describes, without loading its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        wanted = factory.from_config(AutoConfig.from_pretrained(base, local_files_only=True))
    if type(model) is not type(wanted) or _shapes(model) != _shapes(wanted):
        raise TrainError(
            f"The checkpoint {path} ({_words(model)}) has another architecture than this run's base model"
            f" {base} ({_words(wanted)}).",
            "Put back the checkpoint that belongs to this run, or start a new run with --run NAME.",
        )


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def _words(model: Any) -> str:
    return f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters"
