"""Sequences of any length one behind the other, without padding, none of which sees another.

Positions start again at 0 with every sequence, and attention is told where they begin: by variable-length
flash attention on the GPU in half precision, and sequence by sequence everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from kpipe.errors import PolicyError

NAME = "kpipe_packed"
_HALF = (torch.bfloat16, torch.float16)
_PROBE = ([5, 3, 4], [7], [2, 6, 3, 5, 4])
_NEAR = 1e-3


def packed_inputs(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
    """What a model that `enable` has prepared takes for these rows: one sequence of all their tokens."""
    sizes = [len(row) for row in rows]
    ends = torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row]], device=device),
        "position_ids": torch.tensor([[at for size in sizes for at in range(size)]], device=device),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(sizes),
        "max_length_k": max(sizes),
        "kpipe_sizes": sizes,
    }


def enable(model: Any) -> None:
    """Make `model` understand `packed_inputs`, for passes over whole sequences only (there is no cache).

    Raises PolicyError for an architecture that does not keep packed sequences apart.
    """
    inner = base_of(model)
    alone = _states_one_by_one(inner)
    before = inner.config._attn_implementation
    AttentionInterface.register(NAME, attention)
    inner.set_attn_implementation(NAME)
    if not _near(_states_packed(inner), alone):
        inner.set_attn_implementation(before)
        raise PolicyError(
            f"{type(inner).__name__} cannot read packed sequences: they would see one another.",
            "Set train.packing=false.",
        )


def base_of(model: Any) -> Any:
    """The model of transformers; adapters of peft live inside its modules."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    kpipe_sizes: Sequence[int] | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each packed sequence, or of whole rows; [B, heads, N, d] to [B, N, heads, d]."""
    if kpipe_sizes is None or cu_seq_lens_q is None:
        return _one(query, key, value, scaling, sliding_window).transpose(1, 2).contiguous(), None
    if query.is_cuda and query.dtype in _HALF:
        return _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window), None
    parts = (torch.split(x, list(kpipe_sizes), dim=2) for x in (query, key, value))
    out = [_one(q, k, v, scaling, sliding_window) for q, k, v in zip(*parts, strict=True)]
    return torch.cat(out, dim=2).transpose(1, 2).contiguous(), None


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """One kernel for all sequences."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    left = -1 if window is None else window - 1
    out = varlen_attn(
        q, k, v, ends, ends, longest, longest, scale=scaling, window_size=(left, 0), enable_gqa=True
    )
    assert isinstance(out, Tensor)
    return out[None]


def _one(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """Attention of whole sequences; a window of w lets a token see itself and the w - 1 before it."""
    mask = None
    if window is not None and window < query.shape[2]:
        at = torch.arange(query.shape[2], device=query.device)
        away = at[:, None] - at[None, :]
        mask = (away >= 0) & (away < window)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )


@torch.no_grad()
def _states_packed(model: Any) -> Tensor | None:
    """Last hidden states [N, H] of the probe's rows; None when the model does not take them packed."""
    try:
        inputs = packed_inputs(_PROBE, model.device)
        states: Tensor = model.get_decoder()(**inputs, use_cache=False).last_hidden_state[0]
    except (TypeError, ValueError, RuntimeError):
        return None
    return states


@torch.no_grad()
def _states_one_by_one(model: Any) -> Tensor:
    decoder = model.get_decoder()
    rows = (torch.tensor([row], device=model.device) for row in _PROBE)
    return torch.cat([decoder(input_ids=row, use_cache=False).last_hidden_state[0] for row in rows])


def _near(ours: Tensor | None, theirs: Tensor) -> bool:
    return ours is not None and bool((ours - theirs).abs().max() < _NEAR * theirs.abs().max())
