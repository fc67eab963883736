from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from kpipe.errors import PolicyError
from kpipe.policy.logprobs import completion_logprobs, head_is_plain

ModelFactory = Callable[..., nn.Module]
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [4, 4, 8]]
COMPLETIONS = [[10, 11], [20, 21, 22, 23, 24], [30]]


def one_by_one(model: nn.Module, temperature: float) -> list[tuple[Tensor, Tensor]]:
    """Log-probs and entropies of each row alone, from the whole logits in float64."""
    rows = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].double()
        logp = (logits / temperature).log_softmax(-1)
        chosen = logp.gather(1, torch.tensor(completion)[:, None])[:, 0]
        rows.append((chosen, -(logp.exp() * logp).sum(-1)))
    return rows


@pytest.mark.parametrize("chunk", [None, 1, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_each_row_alone(tiny_model: ModelFactory, chunk: int | None, temperature: float) -> None:
    model = tiny_model()
    logp, mask, entropy = completion_logprobs(
        model, PROMPTS, COMPLETIONS, temperature, entropy=True, chunk=chunk
    )
    assert entropy is not None
    assert mask.tolist() == [[i < len(c) for i in range(5)] for c in COMPLETIONS]
    for row, (expected, spread) in enumerate(one_by_one(model, temperature)):
        n = len(expected)
        torch.testing.assert_close(logp[row, :n].double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[row, :n].double(), spread, atol=1e-5, rtol=0)
        assert not logp[row, n:].any()
        assert not entropy[row, n:].any()


@pytest.mark.parametrize("chunk", [None, 3])
def test_gradient_equals_that_of_each_row_alone(tiny_model: ModelFactory, chunk: int | None) -> None:
    model = tiny_model()
    logp, _, entropy = completion_logprobs(model, PROMPTS, COMPLETIONS, 0.8, entropy=True, chunk=chunk)
    assert entropy is not None
    (logp.sum() + 0.1 * entropy.sum()).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    sum(a.sum() + 0.1 * b.sum() for a, b in one_by_one(model, 0.8)).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, atol=2e-4, rtol=1e-3)


def test_large_logits_never_exist_for_the_whole_batch(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: seen.append(len(out)))
    monkeypatch.setattr("kpipe.policy.logprobs.LOGITS_PER_CHUNK", 3 * 260)
    completion_logprobs(model, PROMPTS, COMPLETIONS, 1.0)
    assert seen == [3, 3, 2]


def test_no_entropy_unless_asked_for(tiny_model: ModelFactory) -> None:
    assert completion_logprobs(tiny_model(), PROMPTS, COMPLETIONS, 1.0)[2] is None


@pytest.mark.parametrize(("prompts", "completions"), [([], []), ([[]], [[1]]), ([[1]], [[]])])
def test_empty_sample_is_refused(
    tiny_model: ModelFactory, prompts: list[list[int]], completions: list[list[int]]
) -> None:
    with pytest.raises(PolicyError, match="needs a prompt and a completion"):
        completion_logprobs(tiny_model(), prompts, completions, 1.0)


def test_capped_logits_are_recognised(tiny_model: ModelFactory) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64, "initializer_range": 1.0}
    capped = Gemma2ForCausalLM(Gemma2Config(**sizes, **rest, final_logit_softcapping=2.0)).eval()
    assert not head_is_plain(capped)
    assert head_is_plain(tiny_model())
