"""The loss against an oracle in plain Python loops, and against Liger's fused loss."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kpipe.config import TrainConfig
from kpipe.train.loss import (
    aggregate,
    clipped_objective,
    correction_weights,
    grpo_loss,
    kl_penalty,
    loss_denominator,
)

AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
CORRECTIONS = ["none", "token_truncate", "token_mask"]
MAX_TOKENS = 11


def config(**values: object) -> TrainConfig:
    return TrainConfig.model_validate(values)


@dataclass
class Batch:
    logp: Tensor
    prox: Tensor
    behaviour: Tensor
    ref: Tensor
    advantage: Tensor
    mask: Tensor
    lengths: list[int]


def random_batch(seed: int, *, turns: int = 7, spread: float = 0.4) -> Batch:
    """Log-probabilities of policies near each other, in double precision; what is masked out is nan."""
    g, lengths = torch.Generator().manual_seed(seed), []
    lengths = [random.Random(f"{seed}/{i}").randint(1, MAX_TOKENS) for i in range(turns)]
    width = max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]

    def near(x: Tensor) -> Tensor:
        return x + spread * torch.randn(x.shape, generator=g, dtype=torch.float64)

    prox = torch.where(mask, -3 * torch.rand(turns, width, generator=g, dtype=torch.float64), torch.nan)
    advantage = torch.randn(turns, generator=g, dtype=torch.float64)
    return Batch(near(prox), prox, near(prox), near(prox), advantage, mask, lengths)


# ---- the oracle: one token at a time, one number at a time -------------------------------------
def oracle_weight(prox: float, behaviour: float, mode: str, cap: float) -> float:
    ratio = math.exp(prox - behaviour)
    if mode == "none":
        return 1.0
    if mode == "token_truncate":
        return ratio if ratio < cap else cap
    return ratio if 1 / cap <= ratio <= cap else 0.0


def oracle_token(
    logp: float, prox: float, weight: float, advantage: float, ref: float, cfg: TrainConfig
) -> float:
    ratio = math.exp(logp - prox)
    if ratio < 1 - cfg.clip_low:
        clipped = 1 - cfg.clip_low
    elif ratio > 1 + cfg.clip_high:
        clipped = 1 + cfg.clip_high
    else:
        clipped = ratio
    gain = min(ratio * advantage, clipped * advantage)
    if cfg.dual_clip is not None and advantage < 0 and gain < cfg.dual_clip * advantage:
        gain = cfg.dual_clip * advantage
    d = ref - logp
    kl = {"k1": -d, "k2": 0.5 * d**2, "k3": math.exp(d) - 1 - d}[cfg.kl_estimator]
    return -weight * gain + cfg.kl_beta * kl


def oracle_loss(b: Batch, cfg: TrainConfig) -> float:
    turns = []
    for i, length in enumerate(b.lengths):
        tokens = []
        for t in range(length):
            prox, behaviour = b.prox[i, t].item(), b.behaviour[i, t].item()
            weight = oracle_weight(prox, behaviour, cfg.off_policy_correction, cfg.correction_cap)
            tokens.append(
                oracle_token(
                    b.logp[i, t].item(), prox, weight, b.advantage[i].item(), b.ref[i, t].item(), cfg
                )
            )
        turns.append(tokens)
    if cfg.loss_aggregation == "token_mean":
        return sum(map(sum, turns)) / sum(map(len, turns))
    if cfg.loss_aggregation == "seq_mean_token_mean":
        return sum(sum(tokens) / len(tokens) for tokens in turns) / len(turns)
    return sum(sum(tokens) / MAX_TOKENS for tokens in turns) / len(turns)


def loss_of(
    b: Batch, cfg: TrainConfig, rows: slice = slice(None), *, denominator: float | None = None
) -> Tensor:
    weight = correction_weights(
        b.prox[rows], b.behaviour[rows], b.mask[rows], cfg.off_policy_correction, cfg.correction_cap
    )
    if denominator is None:
        denominator = loss_denominator(b.lengths, cfg.loss_aggregation, MAX_TOKENS)
    return grpo_loss(
        b.logp[rows],
        b.prox[rows],
        weight,
        b.advantage[rows],
        b.mask[rows],
        cfg,
        denominator=denominator,
        ref_BT=b.ref[rows] if cfg.kl_beta else None,
    ).total


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("dual", [None, 1.1])
@pytest.mark.parametrize(("kl", "beta"), [("k1", 0.04), ("k2", 0.04), ("k3", 0.04), ("k3", 0.0)])
def test_value_and_gradient_equal_the_oracle(
    aggregation: str, correction: str, dual: float | None, kl: str, beta: float
) -> None:
    cfg = config(
        loss_aggregation=aggregation,
        off_policy_correction=correction,
        dual_clip=dual,
        kl_estimator=kl,
        kl_beta=beta,
        clip_low=0.2,
        clip_high=0.28,
    )
    for seed in range(4):
        b = random_batch(seed, turns=3)
        b.logp.requires_grad_()
        loss = loss_of(b, cfg)
        (gradient,) = torch.autograd.grad(loss, b.logp)
        b.logp.requires_grad_(False)
        assert loss.item() == pytest.approx(oracle_loss(b, cfg), rel=1e-10)
        assert torch.equal(gradient[~b.mask], torch.zeros_like(gradient[~b.mask]))
        for i, t in itertools.product(range(len(b.lengths)), range(b.mask.shape[1])):
            if b.mask[i, t]:
                assert gradient[i, t].item() == pytest.approx(slope(b, cfg, i, t), rel=1e-4, abs=1e-7)


def slope(b: Batch, cfg: TrainConfig, i: int, t: int, h: float = 1e-6) -> float:
    """The oracle's derivative by one log-probability, from two of its values."""
    values, middle = [], b.logp[i, t].item()
    for x in (middle - h, middle + h):
        b.logp[i, t] = x
        values.append(oracle_loss(b, cfg))
    b.logp[i, t] = middle
    return (values[1] - values[0]) / (2 * h)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_micro_batches_of_any_size_sum_to_the_big_batch(aggregation: str, size: int) -> None:
    cfg = config(loss_aggregation=aggregation, kl_beta=0.04)
    b = random_batch(11)
    whole = loss_of(b, cfg).item()
    denominator = loss_denominator(b.lengths, cfg.loss_aggregation, MAX_TOKENS)
    parts = [loss_of(b, cfg, slice(i, i + size), denominator=denominator).item() for i in range(0, 7, size)]
    assert sum(parts) == pytest.approx(whole, rel=1e-12)


def test_masked_tokens_do_not_shrink_the_denominator() -> None:
    cfg = config(off_policy_correction="token_mask", kl_beta=0.0, correction_cap=2.0)
    b = random_batch(3)
    b.behaviour[0, 0] = b.prox[0, 0] - math.log(2.1)
    weight = correction_weights(b.prox, b.behaviour, b.mask, "token_mask", 2.0)
    assert weight[0, 0] == 0
    objective = clipped_objective(torch.where(b.mask, b.logp - b.prox, 0.0), b.advantage, low=0.2, high=0.28)
    kept = torch.where(b.mask, -weight * objective, 0.0).sum().item()
    assert loss_of(b, cfg).item() == pytest.approx(kept / sum(b.lengths))


def test_a_weight_is_one_for_the_policy_that_sampled() -> None:
    b = random_batch(5)
    for mode in CORRECTIONS:
        weight = correction_weights(b.prox, b.prox, b.mask, mode, 2.0)  # type: ignore[arg-type]
        assert torch.equal(weight, b.mask.double())


def test_dual_clip_stops_the_pull_of_a_runaway_ratio() -> None:
    log_ratio = torch.tensor([[3.0]], requires_grad=True)
    plain = clipped_objective(log_ratio, torch.tensor([-1.0]), low=0.2, high=0.28)
    bounded = clipped_objective(log_ratio, torch.tensor([-1.0]), low=0.2, high=0.28, dual=3.0)
    assert plain.item() == pytest.approx(-math.exp(3))
    assert bounded.item() == -3
    assert torch.autograd.grad(bounded.sum(), log_ratio)[0].item() == 0


def test_k3_is_never_negative_and_k1_may_be() -> None:
    d = torch.linspace(-3, 3, 61)
    assert (kl_penalty(d, "k3") >= 0).all()
    assert (kl_penalty(d, "k1") < 0).any()


def test_an_optimizer_step_without_turns_has_no_denominator() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        loss_denominator([], "token_mean", 8)


def test_a_nan_outside_the_mask_reaches_neither_value_nor_gradient() -> None:
    loss = torch.tensor([[1.0, torch.nan]], requires_grad=True)
    total = aggregate(loss, torch.tensor([[True, False]]), "token_mean", 1.0)
    total.backward()
    assert total.item() == 1
    assert loss.grad is not None
    assert loss.grad.tolist() == [[1.0, 0.0]]


# ---- Liger's fused loss, an independent implementation ------------------------------------------
LIGER = {"token_mean": "bnpo", "seq_mean_token_mean": "grpo", "seq_mean_token_sum_norm": "dr_grpo"}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_gradient_equal_ligers(aggregation: str, beta: float, temperature: float) -> None:
    chunked = pytest.importorskip("liger_kernel.chunked_loss")
    cfg = config(
        loss_aggregation=aggregation,
        kl_beta=beta,
        clip_low=0.2,
        clip_high=0.28,
        off_policy_correction="token_truncate",
    )
    b = random_batch(21, turns=6)
    g = torch.Generator().manual_seed(2)
    turns, width, hidden, vocabulary = *b.mask.shape, 16, 37
    states = torch.randn(turns, width, hidden, generator=g)
    head = torch.randn(vocabulary, hidden, generator=g) / 4
    tokens = torch.randint(vocabulary, b.mask.shape, generator=g)
    start = logps(states, head, tokens, temperature)
    prox = start + 0.3 * torch.randn(start.shape, generator=g)
    behaviour = prox + 0.5 * torch.randn(start.shape, generator=g)
    ref = start + 0.3 * torch.randn(start.shape, generator=g)
    weight = correction_weights(prox, behaviour, b.mask, "token_truncate", 2.0)
    advantage = b.advantage.float()

    theirs_states, theirs_head = states.clone().requires_grad_(), head.clone().requires_grad_()
    liger = chunked.LigerFusedLinearGRPOLoss(
        beta=beta,
        compiled=False,
        use_ref_model=beta > 0,
        epsilon_low=0.2,
        epsilon_high=0.28,
        loss_type=LIGER[aggregation],
        max_completion_length=MAX_TOKENS,
        temperature=temperature,
    )
    theirs, _ = liger(
        theirs_states,
        theirs_head,
        tokens,
        b.mask.float(),
        advantage,
        ref_per_token_logps=ref if beta else None,
        old_per_token_logps=prox,
        vllm_is_ratio=weight,
    )
    theirs.backward()

    ours_states, ours_head = states.clone().requires_grad_(), head.clone().requires_grad_()
    ours = grpo_loss(
        logps(ours_states, ours_head, tokens, temperature),
        prox,
        weight,
        advantage,
        b.mask,
        cfg,
        denominator=loss_denominator(b.lengths, cfg.loss_aggregation, MAX_TOKENS),
        ref_BT=ref if beta else None,
    ).total
    ours.backward()

    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours_states.grad, theirs_states.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours_head.grad, theirs_head.grad, rtol=1e-4, atol=1e-6)


def logps(states: Tensor, head: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    return ((states @ head.T) / temperature).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
