"""Real, tiny checkpoints that the tests make themselves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(1)
"""Threads that wait for each other crawl where other tests want the same cores."""

CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def random_model(vocab: int = 260, seed: int = 0, **changes: object) -> Qwen2ForCausalLM:
    """Random weights, large enough that the distributions are far from uniform."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": vocab - 1,
        "pad_token_id": None,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes})).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and Qwen's three special ones: 259 in all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "<|endoftext|>", "<|im_start|>", "<|im_end|>"])}
    inner = Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture
def tiny_model() -> Callable[..., Qwen2ForCausalLM]:
    return random_model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint; keyword arguments change the model's configuration."""

    def make(name: str = "model", **changes: object) -> Path:
        tokenizer = byte_tokenizer()
        model = random_model(len(tokenizer), **{"eos_token_id": tokenizer.eos_token_id, **changes})
        path = tmp_path / name
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return make
