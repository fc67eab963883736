"""The loss against TRL's own code: `GRPOTrainer._compute_loss`, with log-probabilities in place of a model."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from unit.train.test_loss import AGGREGATIONS, LIGER, MAX_TOKENS, Batch, config, random_batch

from kpipe.config import TrainConfig
from kpipe.train.loss import correction_weights, grpo_loss, loss_denominator

trl = pytest.importorskip("trl", reason="trl is in the extra 'compare'")


def theirs(b: Batch, logp: Tensor, weight: Tensor, cfg: TrainConfig, loss_type: str, high: float) -> Tensor:
    """TRL's loss. The trainer is a name space: the method reads settings and writes down metrics, no more."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=cfg.importance_sampling_level,
        beta=cfg.kl_beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=cfg.clip_low,
        epsilon_high=high,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        max_completion_length=MAX_TOKENS,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.ones_like(b.mask, dtype=torch.long)
    inputs: dict[str, Any] = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": b.mask.long(),
        "advantages": b.advantage,
        "old_per_token_logps": b.prox,
        "ref_per_token_logps": b.ref,
        "importance_sampling_ratio": weight,
        "num_items_in_batch": b.mask.sum(),
    }
    loss: Tensor = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def filled(b: Batch) -> Batch:
    """TRL multiplies with the mask, which a nan survives."""
    for name in ("logp", "prox", "behaviour", "ref"):
        setattr(b, name, getattr(b, name).nan_to_num(nan=-1.0))
    return b


def check(cfg: TrainConfig, loss_type: str, high: float) -> None:
    for seed in range(3):
        b = filled(random_batch(seed))
        how = (cfg.off_policy_correction, cfg.correction_cap, cfg.correction_floor)
        weight = correction_weights(b.prox, b.behaviour, b.mask, *how)
        gradients = []
        for ours in (True, False):
            logp = b.logp.clone().requires_grad_()
            denominator = loss_denominator(b.lengths, cfg.loss_aggregation, MAX_TOKENS)
            loss = (
                grpo_loss(
                    logp, b.prox, weight, b.advantage, b.mask, cfg, denominator=denominator, ref_BT=b.ref
                ).total
                if ours
                else theirs(b, logp, weight, cfg, loss_type, high)
            )
            gradients.append((loss.detach(), *torch.autograd.grad(loss, logp)))
        for mine, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("correction", ["none", "token_truncate", "token_mask", "sequence_truncate"])
def test_the_clipped_objective_equals_trls(aggregation: str, correction: str) -> None:
    cfg = config(loss_aggregation=aggregation, off_policy_correction=correction, kl_beta=0.04)
    check(cfg, LIGER[aggregation], cfg.clip_high)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_sequence_ratios_equal_trls(aggregation: str) -> None:
    gspo = {"importance_sampling_level": "sequence", "off_policy_correction": "none"}
    cfg = config(loss_aggregation=aggregation, kl_beta=0.04, clip_low=0.02, clip_high=0.02, **gspo)
    check(cfg, LIGER[aggregation], cfg.clip_high)


def test_cispo_equals_trls() -> None:
    cfg = config(policy_loss="cispo", clip_high=0.1, kl_beta=0.04)
    check(cfg, "cispo", 1 + cfg.clip_high)
