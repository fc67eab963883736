"""Log-probabilities of completions under a model, for sampling, for the update and for the reference.

Only the positions that predict a completion token reach the vocabulary, a chunk of them at a time: the
float32 logits of a whole batch would be gigabytes with a real vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kpipe.errors import PolicyError
from kpipe.policy.packing import base_of, packed_inputs

LOGITS_PER_CHUNK = 1 << 26
"""Float32 logits that exist at one time: 256 MiB."""


def completion_logprobs(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    temperature: float,
    *,
    entropy: bool = False,
    chunk: int | None = None,
    packed: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probabilities of B completions, each after its own prompt, differentiable in the parameters.

    `packed` needs a model that `packing.enable` has prepared; nothing is padded then. `chunk` is the number of tokens whose logits exist together; by default LOGITS_PER_CHUNK decides.
    Returns float32 log-probs [B, T], a bool mask [B, T] that is true on the tokens of the completions
    (T = the longest one; log-probs are 0 elsewhere), and the entropies in nats [B, T], or None.
    """
    device = model.device
    sizes = [len(c) for c in completion_ids]
    hidden = _predicting_states(model, prompt_ids, completion_ids, packed=packed)
    targets = torch.tensor([t for c in completion_ids for t in c], dtype=torch.long, device=device)
    head = model.get_output_embeddings()
    rows = chunk or max(1, LOGITS_PER_CHUNK // head.weight.shape[0])
    one_chunk = len(targets) <= rows
    scored = []
    for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        if one_chunk or not torch.is_grad_enabled():
            scored.append(_score(head, h, t, temperature, entropy))
        else:
            scored.append(checkpoint(_score, head, h, t, temperature, entropy, use_reentrant=False))
    mask = torch.arange(max(sizes), device=device) < torch.tensor(sizes, device=device)[:, None]
    logp = _spread(torch.cat([s[0] for s in scored]), mask)
    return logp, mask, _spread(torch.cat([s[1] for s in scored]), mask) if entropy else None


def head_is_plain(model: Any) -> bool:
    """True when the model's logits are its output embedding applied to its last hidden state.

    Some architectures cap or scale their logits afterwards; `completion_logprobs` would be wrong for them.
    """
    ids = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        hidden = _decoder(model)(input_ids=ids, use_cache=False).last_hidden_state
        ours = model.get_output_embeddings()(hidden).float()
        theirs = model(input_ids=ids, use_cache=False).logits.float()
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3)


def _predicting_states(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    *,
    packed: bool,
) -> Tensor:
    """Last hidden states [N, H] at the N positions that predict a completion token, row after row.

    Rows are padded on the right, behind everything that a causal model looks at: no attention mask is needed.
    Packed, they are one sequence, in which `kpipe.policy.packing` keeps them apart.
    """
    rows = [[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)]
    if not rows or not all(prompt_ids) or not all(completion_ids):
        raise PolicyError("A log-probability needs a prompt and a completion.", "Leave empty samples out.")
    longest = max(map(len, rows))
    if packed:
        starts = [0, *accumulate(map(len, rows[:-1]))]
        inputs = packed_inputs(rows, model.device)
    else:
        starts = [r * longest for r in range(len(rows))]
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=model.device)
        inputs = {"input_ids": padded}
    flat = [
        start + at
        for start, p, c in zip(starts, prompt_ids, completion_ids, strict=True)
        for at in range(len(p) - 1, len(p) + len(c) - 1)
    ]
    states: Tensor = _decoder(model)(**inputs, use_cache=False).last_hidden_state
    return states.flatten(0, 1).index_select(0, torch.tensor(flat, device=model.device))


def _score(
    head: Any, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (zeros when not asked for), both [n]."""
    logits = head(hidden).float() / temperature
    normalizer = logits.logsumexp(-1)
    logp = logits.gather(-1, targets[:, None]).squeeze(-1) - normalizer
    if not entropy:
        return logp, torch.zeros_like(logp)
    return logp, normalizer - ((logits - normalizer[:, None]).exp() * logits).sum(-1)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def _decoder(model: Any) -> Any:
    """The model without its output embedding; adapters of peft live inside its modules."""
    return base_of(model).get_decoder()
