"""The loss against a reference in plain Python loops, and against Liger's and TRL's losses."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_grpo import Options, Token, Turn, slope
from reference_grpo import loss as reference_loss
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
CORRECTIONS = ["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_geo_mask"]
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


def loss_of(
    b: Batch, cfg: TrainConfig, rows: slice = slice(None), *, denominator: float | None = None
) -> Tensor:
    how = (cfg.off_policy_correction, cfg.correction_cap, cfg.correction_floor)
    weight = correction_weights(b.prox[rows], b.behaviour[rows], b.mask[rows], *how)
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


def as_turns(b: Batch) -> list[Turn]:
    columns = (b.logp, b.prox, b.behaviour, b.ref)
    return [
        Turn(
            b.advantage[i].item(),
            [Token(*(c[i, t].item() for c in columns)) for t in range(length)],
        )
        for i, length in enumerate(b.lengths)
    ]


def options(cfg: TrainConfig) -> Options:
    names = [f.name for f in fields(Options) if f.name != "max_tokens"]
    return Options(**{name: getattr(cfg, name) for name in names}, max_tokens=MAX_TOKENS)


def check(cfg: TrainConfig, b: Batch) -> None:
    """Value and every slope, against the reference in plain Python."""
    b.logp.requires_grad_()
    loss = loss_of(b, cfg)
    (gradient,) = torch.autograd.grad(loss, b.logp)
    b.logp.requires_grad_(False)
    turns, o = as_turns(b), options(cfg)
    assert loss.item() == pytest.approx(reference_loss(turns, o), rel=1e-10, abs=1e-12)
    assert torch.equal(gradient[~b.mask], torch.zeros_like(gradient[~b.mask]))
    for i, turn in enumerate(turns):
        for t in range(len(turn.tokens)):
            assert gradient[i, t].item() == pytest.approx(slope(turns, i, t, o), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    "surrogate",
    [
        {},
        {"dual_clip": 1.1},
        {"policy_loss": "cispo"},
        {"policy_loss": "dppo_tv", "clip_low": 0.05, "clip_high": 0.03},
        {"importance_sampling_level": "sequence"},
        {"importance_sampling_level": "sequence", "policy_loss": "cispo", "clip_high": 0.01},
    ],
    ids=lambda s: "-".join(map(str, s.values())) or "ppo_clip",
)
def test_value_and_gradient_equal_the_reference(
    aggregation: str, correction: str, surrogate: dict[str, object]
) -> None:
    rest = {"loss_aggregation": aggregation, "off_policy_correction": correction}
    for seed, (kl, beta) in enumerate([("k1", 0.04), ("k2", 0.04), ("k3", 0.04), ("k3", 0.0)]):
        cfg = config(**rest, **surrogate, kl_estimator=kl, kl_beta=beta)
        check(cfg, random_batch(seed, turns=3))


@pytest.mark.parametrize("mode", ["token_mask", "sequence_geo_mask"])
def test_a_mask_may_have_a_floor_of_its_own(mode: str) -> None:
    """IcePop's [0.5, 5]: ratios between them stay, however far from symmetrical."""
    cfg = config(off_policy_correction=mode, correction_floor=0.5, correction_cap=5.0)
    check(cfg, random_batch(8, turns=4, spread=1.0))
    for ratio, kept in ((0.49, False), (0.51, True), (4.9, True), (5.1, False)):
        prox = torch.full((1, 1), math.log(ratio))
        weight = correction_weights(prox, torch.zeros(1, 1), torch.tensor([[True]]), mode, 5.0, 0.5)  # type: ignore[arg-type]
        assert bool(weight > 0) is kept


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_combination_equals_the_reference(data: st.DataObject) -> None:
    choices = {
        "policy_loss": ["ppo_clip", "cispo", "dppo_tv"],
        "importance_sampling_level": ["token", "sequence"],
        "off_policy_correction": CORRECTIONS,
        "correction_cap": [1.2, 2.0, 5.0],
        "correction_floor": [None, 0.5],
        "clip_low": [0.02, 0.2],
        "clip_high": [0.01, 0.28],
        "dual_clip": [None, 1.05, 3.0],
        "kl_estimator": ["k1", "k2", "k3"],
        "kl_beta": [0.0, 0.1],
        "loss_aggregation": AGGREGATIONS,
    }
    cfg = config(**{name: data.draw(st.sampled_from(values), name) for name, values in choices.items()})
    check(cfg, random_batch(data.draw(st.integers(0, 999), "seed"), turns=2, spread=0.6))


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
    compare_with_liger(
        config(loss_aggregation=aggregation, kl_beta=beta, off_policy_correction="token_truncate"),
        temperature,
        loss_type=LIGER[aggregation],
        epsilon_high=0.28,
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_sequence_ratios_equal_ligers(aggregation: str) -> None:
    """GSPO. Weights of tokens do not go into its ratio of a turn, so there are none."""
    gspo = {"importance_sampling_level": "sequence", "off_policy_correction": "none"}
    cfg = config(loss_aggregation=aggregation, kl_beta=0.04, clip_low=0.02, clip_high=0.02, **gspo)
    level = "sequence"
    loss_type = LIGER[aggregation]
    compare_with_liger(cfg, 1.0, loss_type=loss_type, epsilon_high=0.02, importance_sampling_level=level)


@pytest.mark.parametrize("high", [0.05, 0.28, 4.0])
def test_cispo_equals_ligers(high: float) -> None:
    """Liger takes the upper bound itself, we take its distance from 1."""
    cfg = config(policy_loss="cispo", clip_high=high, kl_beta=0.04)
    compare_with_liger(cfg, 1.0, loss_type="cispo", epsilon_high=1 + high)


def compare_with_liger(cfg: TrainConfig, temperature: float, **theirs: object) -> None:
    chunked = pytest.importorskip("liger_kernel.chunked_loss", reason="liger-kernel is a test extra")
    beta = cfg.kl_beta
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
    weight = correction_weights(prox, behaviour, b.mask, cfg.off_policy_correction, 2.0)
    advantage = b.advantage.float()

    theirs_states, theirs_head = states.clone().requires_grad_(), head.clone().requires_grad_()
    liger = chunked.LigerFusedLinearGRPOLoss(
        beta=beta,
        compiled=False,
        use_ref_model=beta > 0,
        epsilon_low=cfg.clip_low,
        max_completion_length=MAX_TOKENS,
        temperature=temperature,
        **theirs,
    )
    wanted, _ = liger(
        theirs_states,
        theirs_head,
        tokens,
        b.mask.float(),
        advantage,
        ref_per_token_logps=ref if beta else None,
        old_per_token_logps=prox,
        vllm_is_ratio=weight,
    )
    wanted.backward()

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

    torch.testing.assert_close(ours, wanted.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours_states.grad, theirs_states.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours_head.grad, theirs_head.grad, rtol=1e-4, atol=1e-6)


def logps(states: Tensor, head: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    return ((states @ head.T) / temperature).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
