"""Forced staleness on a bandit whose gradient is known: the corrected loss is unbiased, the plain one is not.

One prompt, one token to say, a reward for each. The true gradient of the expected reward follows from all
of them; the update sees samples of an older policy only.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from unit.train.making import VOCABULARY, learner, settings, tiny_model

from kpipe.config import Config
from kpipe.train.learner import Learner
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Row, Update

PROMPT = [3, 14, 15, 9, 2]
DRAWS = 12000
PARTS = 20
"""The error of a mean over all draws is taken from the means of so many parts."""


class Watched(Learner):
    """Keeps the gradient of its last step."""

    gradient: Tensor

    def step(self, max_norm: float) -> float | None:
        self.gradient = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        return super().step(max_norm)


def policy() -> Tensor:
    """Log-probabilities of all tokens under the policy in training."""
    with torch.no_grad():
        return tiny_model().eval()(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1).double()


def older(now: Tensor) -> Tensor:
    """The policy that sampled, some updates ago: what pays was less likely then."""
    return (now - 0.6 * torch.tensor(rewards(), dtype=torch.float64)).log_softmax(-1)


def rewards() -> list[float]:
    rng = random.Random(8)
    return [rng.uniform(-1, 1) for _ in range(VOCABULARY)]


def gradient(config: Config, rows: list[Row]) -> Tensor:
    """Of the loss of one optimizer step over all rows."""
    plain = learner(config)
    who = Watched(plain.model, None, plain.optimizer, plain.device, half=False)
    Update(who, rows, config, seed=0, step=1, watch=Stopwatch(who.device)).run()
    return who.gradient.double()


def loss_config(correction: str) -> Config:
    return settings(
        proximal="recompute",
        off_policy_correction=correction,
        correction_cap=2.0,
        kl_beta=0.0,
        ppo_epochs=1,
        mini_batch_size=DRAWS,
        gradient_accumulation_steps=1,
        learning_rate=0.0,
    )


def true_gradient() -> Tensor:
    """Of minus the expected reward, by the policy in training over all tokens."""
    model = tiny_model()
    chances = model(torch.tensor([PROMPT])).logits[0, -1].double().softmax(-1)
    value = -(chances * torch.tensor(rewards(), dtype=torch.float64)).sum()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def drawn(count: int, seed: int) -> list[Row]:
    """Tokens by the older policy, with its log-probabilities."""
    behaviour, values = older(policy()), rewards()
    g = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(behaviour.exp(), count, replacement=True, generator=g).tolist()
    return [Row(PROMPT, [t], [behaviour[t].item()], values[t]) for t in tokens]


def test_the_staleness_is_worth_correcting() -> None:
    now = policy()
    ratio = (now - older(now)).exp()
    assert 1.5 < ratio.max() < 2.0
    assert ratio.min() < 0.7


@pytest.mark.parametrize(("correction", "unbiased"), [("token_truncate", True), ("none", False)])
def test_only_the_corrected_gradient_is_that_of_the_expected_reward(correction: str, unbiased: bool) -> None:
    """Along the direction in which the plain loss is wrong."""
    true, config = true_gradient(), loss_config(correction)
    size = DRAWS // PARTS
    parts = torch.stack([gradient(config, drawn(size, seed)) for seed in range(PARTS)])
    bias = exact("none") - true
    direction = bias / bias.norm()
    off = (parts - true) @ direction
    error = off.std().item() / PARTS**0.5
    if unbiased:
        assert abs(off.mean().item()) < 3 * error
    else:
        assert abs(off.mean().item()) > 5 * error
        assert off.mean().item() == pytest.approx(bias.norm().item(), abs=3 * error)


@pytest.mark.parametrize("correction", ["token_truncate", "none"])
def test_the_expectation_over_all_tokens_says_the_same_exactly(correction: str) -> None:
    true = true_gradient()
    off = (exact(correction) - true).norm() / true.norm()
    if correction == "none":
        assert off > 0.15
    else:
        assert off < 1e-4


def exact(correction: str) -> Tensor:
    """The expected gradient: every token once, with its chance under the older policy in its advantage."""
    behaviour, values = older(policy()), rewards()
    rows = [
        Row(PROMPT, [t], [behaviour[t].item()], values[t] * behaviour[t].exp().item() * VOCABULARY)
        for t in range(VOCABULARY)
    ]
    return gradient(loss_config(correction), rows)
