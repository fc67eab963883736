"""The arithmetic of the update: pure functions of tensors, nothing else.

Shapes: B turns, T completion tokens of the longest of them; `_BT` is per token, `_B` per turn.
`logp` are log-probabilities under the current parameters, `prox` under the proximal policy (what the
ratio is taken against), `behaviour` under the policy that sampled, `ref` under the frozen reference;
all with the sampling temperature applied. Where `mask` is False a value means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kpipe.config import TrainConfig

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_geo_mask"]
KlEstimator = Literal["k1", "k2", "k3"]
Level = Literal["token", "sequence"]


class Loss(NamedTuple):
    """`total` carries the gradient; `policy` and `kl` are its detached parts (`kl` without its weight)."""

    total: Tensor
    policy: Tensor
    kl: Tensor


def grpo_loss(
    logp_BT: Tensor,
    prox_BT: Tensor,
    weight_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    cfg: TrainConfig,
    *,
    denominator: float,
    ref_BT: Tensor | None = None,
) -> Loss:
    """Surrogate of the policy gradient plus KL to the reference, of one micro-batch.

    `denominator` is that of the whole optimizer step (`loss_denominator`), so that the sum over its
    micro-batches is the loss of one big batch. `ref_BT` None leaves the KL out.
    """
    log_ratio_BT = log_ratios(logp_BT, prox_BT, mask_BT, cfg.importance_sampling_level)
    objective_BT = objective(log_ratio_BT, logp_BT, prox_BT, advantage_B, mask_BT, cfg)
    policy = aggregate(-weight_BT * objective_BT, mask_BT, cfg.loss_aggregation, denominator)
    if ref_BT is None:
        return Loss(policy, policy.detach(), torch.zeros_like(policy.detach()))
    kl_BT = kl_penalty(torch.where(mask_BT, ref_BT - logp_BT, 0.0), cfg.kl_estimator)
    kl = aggregate(kl_BT, mask_BT, cfg.loss_aggregation, denominator)
    return Loss(policy + cfg.kl_beta * kl, policy.detach(), kl.detach())


def log_ratios(logp_BT: Tensor, prox_BT: Tensor, mask_BT: Tensor, level: Level) -> Tensor:
    """logp - prox of each token, 0 where masked out.

    At level `sequence` the value is the mean over the turn, and the gradient each token's own (GSPO-token,
    Zheng 2025).
    """
    log_ratio_BT = torch.where(mask_BT, logp_BT - prox_BT, 0.0)
    if level == "token":
        return log_ratio_BT
    mean_B1 = log_ratio_BT.detach().sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask_BT, logp_BT - logp_BT.detach() + mean_B1, 0.0)


def objective(
    log_ratio_BT: Tensor,
    logp_BT: Tensor,
    prox_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    cfg: TrainConfig,
) -> Tensor:
    """What is to be maximized, per token, by `cfg.policy_loss`."""
    if cfg.policy_loss == "cispo":
        said_BT = torch.where(mask_BT, logp_BT, 0.0)
        return clipped_weight_objective(log_ratio_BT, said_BT, advantage_B, high=cfg.clip_high)
    if cfg.policy_loss == "dppo_tv":
        moved_BT = torch.where(mask_BT, logp_BT.detach().exp() - prox_BT.exp(), 0.0)
        return trusted_objective(log_ratio_BT, moved_BT, advantage_B, low=cfg.clip_low, high=cfg.clip_high)
    return clipped_objective(
        log_ratio_BT, advantage_B, low=cfg.clip_low, high=cfg.clip_high, dual=cfg.dual_clip
    )


def clipped_weight_objective(
    log_ratio_BT: Tensor, logp_BT: Tensor, advantage_B: Tensor, *, high: float
) -> Tensor:
    """min(ratio, 1 + high) * A * logp with a constant weight: no token loses its gradient (CISPO, MiniMax 2025)."""
    return log_ratio_BT.detach().exp().clamp(max=1 + high) * advantage_B[:, None] * logp_BT


def trusted_objective(
    log_ratio_BT: Tensor, moved_BT: Tensor, advantage_B: Tensor, *, low: float, high: float
) -> Tensor:
    """ratio * A, 0 for tokens whose probability has `moved` too far already in the direction of A.

    A bound on the total variation in place of the ratio: rare tokens are not held back (DPPO, Qi 2026).
    """
    a_B1 = advantage_B[:, None]
    trusted_BT = torch.where(a_B1 > 0, moved_BT <= high, moved_BT >= -low)
    return torch.where(trusted_BT, log_ratio_BT.exp() * a_B1, 0.0)


def outside(
    log_ratio_BT: Tensor, logp_BT: Tensor, prox_BT: Tensor, advantage_B: Tensor, cfg: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Which tokens the objective holds back: below the lower bound, above the upper one."""
    a_B1 = advantage_B[:, None]
    if cfg.policy_loss == "dppo_tv":
        moved_BT = logp_BT.exp() - prox_BT.exp()
        return (moved_BT < -cfg.clip_low) & (a_B1 <= 0), (moved_BT > cfg.clip_high) & (a_B1 > 0)
    ratio_BT = log_ratio_BT.exp()
    if cfg.policy_loss == "cispo":
        return torch.zeros_like(ratio_BT, dtype=torch.bool), ratio_BT > 1 + cfg.clip_high
    return (ratio_BT < 1 - cfg.clip_low) & (a_B1 < 0), (ratio_BT > 1 + cfg.clip_high) & (a_B1 > 0)


def clipped_objective(
    log_ratio_BT: Tensor, advantage_B: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """min(ratio * A, clip(ratio, 1 - low, 1 + high) * A), to be maximized (PPO, Schulman 2017).

    `dual` bounds it from below by dual * A where A < 0 (dual-clip PPO, Ye 2020).
    """
    ratio_BT, a_B1 = log_ratio_BT.exp(), advantage_B[:, None]
    objective_BT = torch.minimum(ratio_BT * a_B1, ratio_BT.clamp(1 - low, 1 + high) * a_B1)
    if dual is not None:
        objective_BT = torch.where(a_B1 < 0, torch.maximum(objective_BT, dual * a_B1), objective_BT)
    return objective_BT


def kl_penalty(log_ratio_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """KL(current || reference) per token from d = ref - logp: -d, d^2 / 2 or e^d - 1 - d (Schulman 2020)."""
    d = log_ratio_BT
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d * d / 2
    return torch.expm1(d) - d


def correction_weights(
    prox_BT: Tensor,
    behaviour_BT: Tensor,
    mask_BT: Tensor,
    mode: Correction,
    cap: float,
    floor: float | None = None,
) -> Tensor:
    """Importance weight of the proximal policy over the one that sampled, per token; 0 where masked out.

    Give detached tensors: the weight is a constant of the update. `none` is 1.
    `token_truncate` (TIS, Yao 2025) cuts each token's ratio at `cap`; `token_mask` (IcePop, 2025) drops
    tokens whose ratio leaves [floor, cap]; `sequence_truncate` cuts the product of a turn's ratios;
    `sequence_geo_mask` drops turns whose geometric mean leaves [floor, cap] and gives the others weight 1.
    `floor` None is 1 / cap.
    """
    if mode == "none":
        return mask_BT.to(prox_BT.dtype)
    low = 1 / cap if floor is None else floor
    log_ratio_BT = torch.where(mask_BT, prox_BT - behaviour_BT, 0.0)
    if mode == "token_truncate":
        kept_BT = log_ratio_BT.exp().clamp(max=cap)
    elif mode == "token_mask":
        ratio_BT = log_ratio_BT.exp()
        kept_BT = torch.where((ratio_BT >= low) & (ratio_BT <= cap), ratio_BT, 0.0)
    elif mode == "sequence_truncate":
        kept_BT = log_ratio_BT.sum(-1, keepdim=True).exp().clamp(max=cap)
    else:
        mean_B1 = (log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)).exp()
        kept_BT = ((mean_B1 >= low) & (mean_B1 <= cap)).to(prox_BT.dtype)
    return torch.where(mask_BT, kept_BT, 0.0)


def loss_denominator(lengths: Sequence[int], how: Aggregation, max_tokens: int) -> float:
    """What the summed loss of one optimizer step is divided by.

    `lengths` are the completion tokens of every turn of the step, before micro-batching;
    `max_tokens` is the longest completion that sampling allows. Raises ValueError without turns.
    """
    if not lengths:
        raise ValueError("an optimizer step needs at least one turn")
    if how == "token_mean":
        return float(sum(lengths))
    if how == "seq_mean_token_mean":
        return float(len(lengths))
    return float(len(lengths) * max_tokens)


def aggregate(loss_BT: Tensor, mask_BT: Tensor, how: Aggregation, denominator: float) -> Tensor:
    """One number from the token losses: each token alike, or each turn alike (seq_mean_token_mean)."""
    loss_BT = torch.where(mask_BT, loss_BT, 0.0)
    if how == "seq_mean_token_mean":
        return (loss_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)).sum() / denominator
    return loss_BT.sum() / denominator
