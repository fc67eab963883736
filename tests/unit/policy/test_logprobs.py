from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, MambaConfig, MambaForCausalLM

from kpipe.errors import PolicyError
from kpipe.policy import packing
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


SHAPES: dict[str, dict[str, object]] = {
    "plain": {},
    "grouped queries": {"num_key_value_heads": 1},
    "own head": {"tie_word_embeddings": False},
    "windows": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [None, 3])
def test_packed_equals_padded_in_value_and_gradient(
    tiny_model: ModelFactory, shape: str, chunk: int | None
) -> None:
    results = []
    for packed in (False, True):
        model = tiny_model(**SHAPES[shape])
        if packed:
            packing.enable(model)
        logp, mask, entropy = completion_logprobs(
            model, PROMPTS, COMPLETIONS, 0.8, entropy=True, chunk=chunk, packed=packed
        )
        assert entropy is not None
        (logp.sum() + 0.1 * entropy.sum()).backward()
        results.append((logp, mask, entropy, [p.grad for p in model.parameters()]))
    padded, ours = results
    assert torch.equal(padded[1], ours[1])
    torch.testing.assert_close(ours[0], padded[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours[2], padded[2], atol=1e-5, rtol=0)
    for mine, theirs in zip(ours[3], padded[3], strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-3)


def test_packed_reads_every_token_once(tiny_model: ModelFactory) -> None:
    model, seen = tiny_model(), []
    packing.enable(model)
    model.get_input_embeddings().register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].shape))
    completion_logprobs(model, PROMPTS, COMPLETIONS, 1.0, packed=True)
    assert seen == [(1, sum(map(len, PROMPTS)) + sum(map(len, COMPLETIONS)))]


def test_rows_of_a_prepared_model_that_are_not_packed_mean_what_they_meant(tiny_model: ModelFactory) -> None:
    plain, prepared = tiny_model(), tiny_model()
    packing.enable(prepared)
    ours, theirs = (completion_logprobs(m, PROMPTS, COMPLETIONS, 1.0)[0] for m in (prepared, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_model_that_does_not_keep_packed_rows_apart_is_refused(tiny_model: ModelFactory) -> None:
    """Scores that are capped inside attention, and a state that runs on from row to row."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64, "initializer_range": 1.0}
    capped = Gemma2ForCausalLM(Gemma2Config(**sizes, **rest, attn_logit_softcapping=0.5)).eval()
    before = capped.config._attn_implementation
    with pytest.raises(PolicyError, match="cannot read packed sequences"):
        packing.enable(capped)
    assert capped.config._attn_implementation == before
    recurrent = MambaForCausalLM(
        MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(PolicyError, match=r"train.packing=false"):
        packing.enable(recurrent.eval())


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
