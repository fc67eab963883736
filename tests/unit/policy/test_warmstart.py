import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from kpipe import problems
from kpipe.domain.prompt import load_template
from kpipe.policy import grammar, tiny
from kpipe.policy.logprobs import completion_logprobs
from kpipe.policy.warmstart import RESULTS, Examples, Row, finetune, suggestion_loss

ROWS = [Row([1, 2, 3, 4, 5], [[10, 11, 12], [20], [30, 31]]), Row([6, 7], [[10], [40, 41, 42, 43, 44]])]


@pytest.fixture(scope="module")
def examples() -> Examples:
    return Examples(problems.builtin(), load_template("compact"))


def test_shared_prompt_equals_each_suggestion_alone(tiny_model: Callable[..., nn.Module]) -> None:
    model = tiny_model()
    pairs = [(row.prompt, said) for row in ROWS for said in row.suggestions]
    logp, mask, _ = completion_logprobs(model, [p for p, _ in pairs], [s for _, s in pairs], 1.0)
    alone = -logp.sum() / mask.sum()
    torch.testing.assert_close(suggestion_loss(model, ROWS), alone, atol=1e-5, rtol=0)
    suggestion_loss(model, ROWS).backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    alone.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(together[name], p.grad, atol=1e-4, rtol=1e-3)


def test_prompts_cover_every_state(examples: Examples) -> None:
    rng = random.Random(0)
    prompts = [examples.prompt(rng)[0] for _ in range(3000)]
    for label, count in (("result", len(RESULTS) + 1), ("problem", len(problems.builtin()))):
        lines = Counter(next(x for x in p.splitlines() if x.startswith(f"{label}: ")) for p in prompts)
        assert len(lines) == count
        assert min(lines.values()) > 3000 / count / 3
    assert any("last: none" in p and "result: baseline" in p for p in prompts)


def test_strategies_are_drawn_uniformly(examples: Examples) -> None:
    rng = random.Random(0)
    known = {s: k for k, s in grammar.all_sentences(tuple(p.name for p in problems.builtin()))}
    seen = Counter(known[examples.suggestion(examples.prompt(rng)[1], rng)] for _ in range(3400))
    assert set(seen) == set(grammar.STRATEGIES)
    expected = 3400 / len(grammar.STRATEGIES)
    assert all(0.7 * expected < count < 1.3 * expected for count in seen.values())


def test_finetuning_lowers_the_loss_on_other_prompts(examples: Examples) -> None:
    rng = random.Random(3)
    asked = [examples.prompt(rng) for _ in range(60)]
    tokenizer = tiny.make_tokenizer([prompt for prompt, _ in asked])
    held_out = [
        Row(tokenizer(p)["input_ids"], [tokenizer(examples.suggestion(q, rng))["input_ids"]])
        for p, q in asked
    ]
    model = tiny.make_model(tokenizer, seed=0)
    before = suggestion_loss(model, held_out).item()
    finetune(model, tokenizer, examples, steps=12, seed=0)
    assert suggestion_loss(model, held_out).item() < 0.8 * before
    assert not model.training
