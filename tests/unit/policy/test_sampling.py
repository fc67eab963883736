from collections.abc import Callable

import pytest
import torch
from torch import nn

from kpipe.errors import PolicyError
from kpipe.policy.logprobs import completion_logprobs
from kpipe.policy.sampling import Drawn, sample, uniforms

ModelFactory = Callable[..., nn.Module]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [3], [5, 6, 7, 8, 9, 10, 11], [40, 41, 42, 43]]
NEW = 12


def draw_all(
    model: nn.Module, prompts: list[list[int]], stop: set[int], temperature: float = 1.0
) -> list[Drawn]:
    draws = torch.stack([uniforms(seed, NEW) for seed in range(len(prompts))])
    return sample(model, prompts, draws, temperature, stop)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_recomputation(tiny_model: ModelFactory, temperature: float) -> None:
    model = tiny_model()
    drawn = draw_all(model, PROMPTS, set(range(0, 260, 9)), temperature)
    assert len({len(d.ids) for d in drawn}) > 1, "rows must end at different times to test the compaction"
    logp, mask, _ = completion_logprobs(model, PROMPTS, [d.ids for d in drawn], temperature)
    stored = torch.zeros_like(logp)
    for row, d in enumerate(drawn):
        stored[row, : len(d.logprobs)] = torch.tensor(d.logprobs)
    torch.testing.assert_close(stored, logp, atol=1e-5, rtol=0)
    assert mask.sum(1).tolist() == [len(d.ids) for d in drawn]


def test_a_row_does_not_depend_on_its_batch(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    stop = set(range(0, 260, 9))
    together = draw_all(model, PROMPTS, stop)
    for seed, prompt in enumerate(PROMPTS):
        (alone,) = sample(model, [prompt], uniforms(seed, NEW)[None], 1.0, stop)
        assert alone.ids == together[seed].ids
        assert alone.logprobs == pytest.approx(together[seed].logprobs, abs=1e-5)


def test_equal_prompts_with_other_seeds_differ(tiny_model: ModelFactory) -> None:
    drawn = draw_all(tiny_model(), PROMPTS, set())
    assert drawn[0].ids != drawn[2].ids
    assert [len(d.ids) for d in drawn] == [NEW] * len(PROMPTS)
    assert not any(d.stopped for d in drawn)


def test_stop_token_is_kept_and_ends_the_row(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    free = draw_all(model, PROMPTS, set())
    stop = free[1].ids[4]
    for before, after in zip(free, draw_all(model, PROMPTS, {stop}), strict=True):
        end = before.ids.index(stop) + 1 if stop in before.ids else NEW
        assert after.ids == before.ids[:end]
        assert after.stopped == (stop in before.ids)


def test_frequencies_follow_the_probabilities(tiny_model: ModelFactory) -> None:
    """One token drawn with 4,000 seeds: no temperature, top-k or top-p beyond the asked one."""
    model = tiny_model(24)
    count = 4000
    draws = torch.stack([uniforms(seed, 1) for seed in range(count)])
    drawn = sample(model, [[1, 2, 3]] * count, draws, 0.8, set())
    seen = torch.bincount(torch.tensor([d.ids[0] for d in drawn]), minlength=24) / count
    with torch.no_grad():
        expected = (model(torch.tensor([[1, 2, 3]])).logits[0, -1] / 0.8).softmax(-1)
    assert (seen - expected).abs().max() < 4 * (0.25 / count) ** 0.5
    assert expected.min() < 0.01


def test_generation_config_has_no_say(tiny_model: ModelFactory) -> None:
    plain, advised = tiny_model(), tiny_model()
    advised.generation_config.update(top_k=1, do_sample=False, temperature=0.1, repetition_penalty=2.0)
    assert draw_all(plain, PROMPTS, set()) == draw_all(advised, PROMPTS, set())


def test_uniforms_are_those_of_the_seed() -> None:
    assert torch.equal(uniforms(7, 5), uniforms(7, 9)[:5])
    assert not torch.equal(uniforms(7, 5), uniforms(8, 5))
    assert uniforms(2**47 + 7, 3).dtype == torch.float64


def test_diverged_weights_are_an_error(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = float("nan")
    with pytest.raises(PolicyError, match="not finite"):
        draw_all(model, PROMPTS, set())
