"""One update on a real, tiny model."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from unit.train.making import learner, said, settings, tiny_model

from kpipe.config import Config
from kpipe.train.learner import Learner
from kpipe.train.loss import grpo_loss
from kpipe.train.tally import Stopwatch
from kpipe.train.update import (
    PADDING_LIMIT,
    Learned,
    Row,
    Stopped,
    TooLarge,
    Update,
    even_parts,
    micro_batches,
)

ROWS = 16
NEAR = 2e-4
"""A fiftieth of one AdamW step at the tests' learning rate: it blows rounding up where a gradient is tiny."""


def rows(
    seed: int = 0, count: int = ROWS, *, noise: float = 0.0, advantages: list[float] | None = None
) -> list[Row]:
    """What the model of seed 0 said."""
    rng = random.Random(seed)
    records = said(rng, tiny_model(), count, noise=noise)
    values = advantages or [rng.gauss(0, 1) for _ in records]
    return [Row(r.prompt, r.completion, r.logprobs, a) for r, a in zip(records, values, strict=True)]


def updated(
    config: Config, batch: list[Row], *, step: int = 1, seed: int = 5, by: Learner | None = None
) -> tuple[Learner, Learned]:
    who = by or learner(config)
    watch = Stopwatch(who.device)
    return who, Update(who, batch, config, seed=seed, step=step, watch=watch).run()


def parameters(who: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in who.model.parameters()])


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
@pytest.mark.parametrize("proximal", ["behaviour", "recompute"])
def test_gradient_accumulation_equals_one_big_batch(aggregation: str, proximal: str) -> None:
    """The same optimizer steps, cut into micro-batches of different sizes."""
    batch = rows(noise=0.1)
    ends = []
    for mini, accumulation in ((16, 1), (4, 4), (1, 16)):
        config = settings(
            mini_batch_size=mini,
            gradient_accumulation_steps=accumulation,
            loss_aggregation=aggregation,
            proximal=proximal,
            kl_beta=0.05,
        )
        who, learned = updated(config, batch)
        assert learned.metrics["optimizer_steps"] == config.train.ppo_epochs
        ends.append((parameters(who), learned.metrics))
    for other, metrics in ends[1:]:
        torch.testing.assert_close(other, ends[0][0], rtol=0, atol=NEAR)
        for name in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "mismatch_k3", "ratio_mean"):
            assert metrics[name] == pytest.approx(ends[0][1][name], rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize(
    "how",
    [
        {"packing": True},
        {"packing": True, "max_tokens_per_micro_batch": 70},
        {"max_tokens_per_micro_batch": 50},
        {"gradient_checkpointing": True},
        {"packing": True, "gradient_checkpointing": True, "max_tokens_per_micro_batch": 1},
    ],
    ids=lambda how: "-".join(how),
)
@pytest.mark.parametrize("proximal", ["behaviour", "recompute"])
def test_how_memory_is_saved_does_not_change_the_update(how: dict[str, Any], proximal: str) -> None:
    batch, plain = rows(noise=0.1), {"proximal": proximal, "kl_beta": 0.05, "max_grad_norm": 1e9}
    (one, first), (other, second) = (updated(settings(**plain, **more), batch) for more in ({}, how))
    torch.testing.assert_close(parameters(other), parameters(one), rtol=0, atol=NEAR)
    for name in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "mismatch_k3", "ratio_mean"):
        assert second.metrics[name] == pytest.approx(first.metrics[name], rel=1e-3, abs=1e-6), name
    assert (second.tokens, second.tokens_frozen) == (first.tokens, first.tokens_frozen)


def test_checkpointing_keeps_fewer_activations() -> None:
    """Counted as the tensors that autograd saves for the backward pass of one micro-batch."""
    saved = []
    for on in (False, True):
        who, sizes = learner(settings(gradient_checkpointing=on)), []
        pack = torch.autograd.graph.saved_tensors_hooks(
            lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t
        )
        with pack:
            who.logprobs(who.model, [[5] * 60], [[6] * 30], 1.0, entropy=False)
        saved.append(sum(sizes))
        assert not any(m.training for m in who.model.modules() if isinstance(m, torch.nn.Dropout))
    assert saved[1] < saved[0] / 2


def test_a_micro_batch_that_does_not_fit_is_named_with_one_that_did() -> None:
    config = settings(max_tokens_per_micro_batch=60)
    who, batch = learner(config), rows()
    limit = max(len(r.prompt) + len(r.completion) for r in batch)

    def too_much(_module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs[0].numel() > limit and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")

    who.model.get_input_embeddings().register_forward_pre_hook(too_much)
    with pytest.raises(TooLarge) as caught:
        updated(config, batch, by=who)
    assert limit < caught.value.tokens <= 60
    assert 0 <= caught.value.fitted <= limit


def test_one_step_is_one_adamw_step_on_the_loss() -> None:
    """Against a plain loop: one forward pass of each row alone, one optimizer step."""
    config = settings(
        mini_batch_size=ROWS, gradient_accumulation_steps=1, ppo_epochs=1, kl_beta=0.05, max_grad_norm=0.5
    )
    batch = rows(noise=0.2)
    who, learned = updated(config, batch)

    plain = learner(config)
    total = sum(len(r.completion) for r in batch)
    for r in batch:
        logp, mask, _ = plain.logprobs(plain.model, [r.prompt], [r.completion], 1.0, entropy=False)
        with torch.no_grad():
            ref, _, _ = plain.logprobs(plain.reference, [r.prompt], [r.completion], 1.0, entropy=False)
        prox, advantage = torch.tensor([r.behaviour]), torch.tensor([r.advantage])
        grpo_loss(
            logp, prox, torch.ones_like(prox), advantage, mask, config.train, denominator=total, ref_BT=ref
        ).total.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5)
    plain.optimizer.step()
    assert learned.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert norm > 0.5
    torch.testing.assert_close(parameters(who), parameters(plain), rtol=0, atol=NEAR)


def test_kl_is_taken_to_the_reference_not_to_the_start_of_the_update() -> None:
    config = settings(ppo_epochs=1, mini_batch_size=ROWS, gradient_accumulation_steps=1, kl_beta=0.1)
    batch, who = rows(), learner(config)
    who.model.load_state_dict(tiny_model(seed=1).state_dict())
    values = []
    for r in batch:
        ours, _, _ = who.logprobs(who.model, [r.prompt], [r.completion], 1.0, entropy=False)
        d = torch.tensor(r.behaviour) - ours[0].detach()
        values += (d.exp() - 1 - d).tolist()
    _, learned = updated(config, batch, by=who)
    assert learned.metrics["kl"] == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_it_raises_what_was_good_and_lowers_what_was_bad() -> None:
    config = settings(kl_beta=0.0, ppo_epochs=4, learning_rate=3e-3)
    batch = rows(advantages=[1.0, -1.0] * (ROWS // 2))
    who, _ = updated(config, batch)
    for row in batch:
        logp, _, _ = who.logprobs(who.model, [row.prompt], [row.completion], 1.0, entropy=False)
        assert (logp.sum().item() > sum(row.behaviour)) == (row.advantage > 0)


def test_the_same_seed_and_step_give_the_same_bits() -> None:
    config, batch = settings(), rows()
    first, again = updated(config, batch)[0], updated(config, batch)[0]
    assert torch.equal(parameters(first), parameters(again))
    for other in (updated(config, batch, seed=6)[0], updated(config, batch, step=2)[0]):
        assert not torch.equal(parameters(first), parameters(other))


def test_without_advantage_nothing_moves_and_without_kl_nothing_is_computed() -> None:
    config = settings(kl_beta=0.0, weight_decay=0.1)
    who, learned = updated(config, rows(advantages=[0.0] * ROWS))
    assert torch.equal(parameters(who), parameters(learner(config)))
    assert learned.tokens == 0
    assert learned.metrics["optimizer_steps"] == 0


def test_a_row_without_advantage_counts_in_the_denominator() -> None:
    """Left out of the passes for speed; the gradient is as if it had been in."""
    config = settings(
        kl_beta=0.0, ppo_epochs=1, mini_batch_size=ROWS, gradient_accumulation_steps=1, max_grad_norm=1e9
    )
    batch = rows(advantages=[0.0, 1.0] * (ROWS // 2))
    _, learned = updated(config, batch)
    gain = sum(len(r.completion) for r in batch if r.advantage) / sum(len(r.completion) for r in batch)
    assert learned.metrics["loss"] == pytest.approx(-gain, rel=1e-5)
    assert learned.tokens == sum(len(r.prompt) + len(r.completion) for r in batch if r.advantage)


def test_an_empty_batch_is_an_update_that_changes_nothing() -> None:
    config = settings(proximal="recompute", kl_beta=0.1)
    who, learned = updated(config, [])
    assert torch.equal(parameters(who), parameters(learner(config)))
    assert learned.weights == []
    assert learned.metrics["loss"] == 0


def test_a_learning_rate_of_zero_runs_everything_and_changes_nothing() -> None:
    config = settings(learning_rate=0, kl_beta=0.1)
    who, learned = updated(config, rows())
    assert torch.equal(parameters(who), parameters(learner(config)))
    assert learned.metrics["optimizer_steps"] == 4
    assert learned.metrics["grad_norm"] > 0


def test_a_gradient_that_is_not_finite_skips_its_step_only() -> None:
    """One poisoned row: its optimizer step of each pass is skipped, the other one counts."""
    config = settings(ppo_epochs=2)
    batch = rows()
    poisoned = batch[3]
    batch[3] = Row(poisoned.prompt, poisoned.completion, [-1e4] * len(poisoned.completion), -1.0)
    who, learned = updated(config, batch)
    assert learned.metrics["skipped_steps"] == 2
    assert learned.metrics["optimizer_steps"] == 2
    assert torch.isfinite(parameters(who)).all()
    assert not torch.equal(parameters(who), parameters(learner(config)))


def test_warm_up_rises_linearly() -> None:
    config = settings(learning_rate=0.8, warmup_steps=4)
    who = learner(config)
    assert [who.set_learning_rate(config.train, step) for step in range(1, 7)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]
    )
    assert {g["lr"] for g in who.optimizer.param_groups} == {0.8}


def test_recompute_corrects_for_the_policy_that_sampled() -> None:
    """Behaviour log-probs that are too low by log 3: the raw weight is 3, cut at 2."""
    batch = [Row(r.prompt, r.completion, [x - 1.0986123 for x in r.behaviour], r.advantage) for r in rows()]
    config = settings(proximal="recompute", off_policy_correction="token_truncate", correction_cap=2.0)
    _, learned = updated(config, batch)
    assert learned.weights == pytest.approx([2.0] * ROWS)
    assert learned.metrics["mismatch_ratio_max"] == pytest.approx(3.0, rel=1e-4)
    assert learned.metrics["mismatch_k3"] == pytest.approx(3 - 1 - 1.0986123, rel=1e-3)
    assert learned.metrics["mismatch_ess"] == pytest.approx(1.0, rel=1e-4)


def test_against_the_stored_log_probs_no_weight_is_needed() -> None:
    _, learned = updated(settings(proximal="behaviour"), rows(noise=0.2))
    assert learned.weights == [1.0] * ROWS
    assert learned.metrics["mismatch_k3"] > 0
    assert 0 < learned.metrics["mismatch_ess"] < 1


def test_on_policy_metrics_say_so() -> None:
    config = settings(ppo_epochs=1, mini_batch_size=ROWS, gradient_accumulation_steps=1)
    _, learned = updated(config, rows())
    m = learned.metrics
    assert m["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert m["clip_fraction_low"] == m["clip_fraction_high"] == 0
    assert m["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert m["kl"] == pytest.approx(0, abs=1e-6)
    assert m["mismatch_k3"] == pytest.approx(0, abs=1e-6)
    assert m["mismatch_ess"] == pytest.approx(1, abs=1e-5)


def test_the_temperature_of_sampling_is_applied() -> None:
    batch = [
        Row(r.prompt, r.completion, r.logprobs, 1.0)
        for r in said(random.Random(0), tiny_model(), ROWS, temperature=0.6)
    ]
    one_step = settings(ppo_epochs=1, mini_batch_size=ROWS, gradient_accumulation_steps=1)
    cooler = one_step.model_copy(update={"policy": one_step.policy.model_copy(update={"temperature": 0.6})})
    assert updated(cooler, batch)[1].metrics["mismatch_k3"] == pytest.approx(0, abs=1e-6)
    assert updated(one_step, batch)[1].metrics["mismatch_k3"] > 0.01


def test_entropy_is_that_of_the_whole_distribution() -> None:
    config = settings(ppo_epochs=1, mini_batch_size=ROWS, gradient_accumulation_steps=1)
    batch, model = rows(), tiny_model()
    values = []
    for r in batch:
        logits = model(torch.tensor([[*r.prompt, *r.completion]])).logits[0, len(r.prompt) - 1 : -1]
        values += torch.distributions.Categorical(logits=logits).entropy().tolist()
    assert updated(config, batch)[1].metrics["entropy"] == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_bfloat16_keeps_float32_master_weights_and_learns_about_the_same() -> None:
    batch = rows()
    half, learned = updated(settings(dtype="bfloat16", learning_rate=1e-4), batch)
    full, exact = updated(settings(dtype="float32", learning_rate=1e-4), batch)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert all(v.dtype == torch.float32 for s in half.optimizer.state.values() for v in s.values())
    assert learned.metrics["loss"] == pytest.approx(exact.metrics["loss"], abs=0.05)
    moved = parameters(full) - parameters(learner(settings()))
    assert torch.cosine_similarity(moved, parameters(half) - parameters(learner(settings())), dim=0) > 0.7


def test_a_stop_is_heard_before_the_next_micro_batch() -> None:
    config, calls = settings(mini_batch_size=1), 0

    def asked() -> bool:
        nonlocal calls
        calls += 1
        return calls > 5

    who = learner(config)
    with pytest.raises(Stopped):
        Update(who, rows(), config, seed=0, step=1, watch=Stopwatch(who.device), should_stop=asked).run()
    assert calls == 6


@given(st.integers(1, 300), st.integers(1, 70))
def test_optimizer_steps_are_few_full_and_even(count: int, limit: int) -> None:
    parts = even_parts(list(range(count)), limit)
    assert [i for part in parts for i in part] == list(range(count))
    assert len(parts) == -(-count // limit)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.lists(st.integers(2, 150), max_size=80), st.integers(1, 400), st.booleans())
def test_a_budget_of_tokens_is_kept_but_by_a_row_that_is_longer(
    lengths: list[int], budget: int, packed: bool
) -> None:
    sizes: dict[int, Any] = dict(enumerate(lengths))
    parts = micro_batches(sizes, 80, budget=budget, packed=packed)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    for part in parts:
        tokens = sum(sizes[i] for i in part) if packed else max(sizes[i] for i in part) * len(part)
        assert tokens <= budget or len(part) == 1


@given(st.lists(st.integers(2, 150), max_size=80), st.integers(1, 20))
def test_micro_batches_hold_every_row_once_and_little_padding(lengths: list[int], limit: int) -> None:
    sizes: dict[int, Any] = dict(enumerate(lengths))
    parts = micro_batches(sizes, limit)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    for part in parts:
        padded = max(sizes[i] for i in part) * len(part)
        assert len(part) <= limit
        assert padded - sum(sizes[i] for i in part) <= PADDING_LIMIT * padded
