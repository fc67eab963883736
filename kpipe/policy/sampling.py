"""Ancestral sampling of many rows at once. What a row draws depends on its own random numbers only."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kpipe.errors import PolicyError


@dataclass(slots=True)
class Drawn:
    """One completion: its tokens with the stop token, and their log-probabilities after the temperature."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


def uniforms(seed: int, count: int) -> Tensor:
    """The random numbers of one row: float64 in [0, 1), the same on every device."""
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def sample(
    model: Any, prompts: Sequence[Sequence[int]], draws: Tensor, temperature: float, stop: Set[int]
) -> list[Drawn]:
    """Continue each of R prompts by up to N tokens; `draws` [R, N] are the uniforms to spend, one per token.

    The whole distribution is sampled: no top-k, no top-p, no penalties. Raises PolicyError when the model's
    probabilities are not finite.
    """
    results = [Drawn() for _ in prompts]
    alive = list(range(len(prompts)))
    draws = draws.to(model.device)
    batch = _Batch(model, prompts)
    for step in range(draws.shape[1]):
        chosen, logp = _draw(batch.logits, draws[:, step], temperature)
        tokens, values = chosen.tolist(), logp.tolist()
        for row, token, value in zip(alive, tokens, values, strict=True):
            results[row].ids.append(token)
            results[row].logprobs.append(value)
            results[row].stopped = token in stop
        keep = [i for i, token in enumerate(tokens) if token not in stop]
        if not keep or step == draws.shape[1] - 1:
            break
        if len(keep) < len(alive):
            kept = torch.tensor(keep, device=model.device)
            alive, chosen, draws = [alive[i] for i in keep], chosen[kept], draws[kept]
            batch.keep(kept)
        batch.append(chosen)
    return results


class _Batch:
    """Rows in flight: their cache, padding and next-token logits [R, V].

    Prompts are padded on the left, so that all rows grow at the same end. Equal prompts (the trajectories of
    a group start with the same one) go through the model once.
    """

    logits: Tensor

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.cache = DynamicCache(config=model.config)
        distinct = {tuple(p): i for i, p in enumerate(dict.fromkeys(map(tuple, prompts)))}
        longest = max(map(len, distinct))
        device = model.device
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in distinct], device=device)
        lengths = torch.tensor([len(p) for p in distinct], device=device)
        self.mask = torch.arange(longest, device=device) >= longest - lengths[:, None]
        self.padded = len({len(p) for p in distinct}) > 1
        self._forward(ids, (self.mask.cumsum(1) - 1).clamp(min=0))
        self.next_position = lengths[:, None]
        if len(distinct) < len(prompts):
            self.keep(torch.tensor([distinct[tuple(p)] for p in prompts], device=device))

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows, in this order; a row may appear more than once."""
        self.cache.batch_select_indices(rows)
        self.mask, self.next_position, self.logits = (
            self.mask[rows],
            self.next_position[rows],
            self.logits[rows],
        )

    def append(self, tokens: Tensor) -> None:
        """Give every row its next token [R]."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=True)
        self._forward(tokens[:, None], self.next_position)
        self.next_position = self.next_position + 1

    def _forward(self, ids: Tensor, positions: Tensor) -> None:
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask if self.padded else None,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]


def _draw(logits: Tensor, draw: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative probability exceeds the row's uniform, and its log-probability."""
    logp = (logits.float() / temperature).log_softmax(-1)
    cumulative = logp.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    if not bool(total.isfinite().all()):
        raise PolicyError(
            "The policy's probabilities are not finite numbers: its training has diverged.",
            "Start a new run with a smaller train.learning_rate.",
        )
    chosen = torch.searchsorted(cumulative, draw[:, None] * total, right=True)
    chosen = chosen.clamp(max=logits.shape[-1] - 1)
    return chosen[:, 0], logp.gather(-1, chosen)[:, 0]
