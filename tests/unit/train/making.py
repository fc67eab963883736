"""Small real things for the trainer's tests: a Qwen2 with random weights, samples that it said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from kpipe.config import Config
from kpipe.policy import packing
from kpipe.policy.logprobs import completion_logprobs
from kpipe.store.records import Sample, TokenRecord
from kpipe.train.learner import Learner, checkpoint_activations, make_optimizer

VOCABULARY = 61


def tiny_model(seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """A few thousand parameters, with weights large enough that its distributions are far from uniform."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**shape, **changes})).eval()


def write_base(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint. The trainer copies a tokenizer's files without reading them: one file will do."""
    tiny_model(seed, **changes).save_pretrained(path)
    (path / "tokenizer.json").write_text('{"version": "1.0"}\n')
    return path


def settings(**train: Any) -> Config:
    """A configuration for a few samples; keyword arguments change its `train` section."""
    values = {
        "mini_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "threads": 1,
        **train,
    }
    return Config.model_validate(
        {"policy": {"max_new_tokens": 12}, "train": {"device": "cpu", **values}},
    )


def learner(config: Config, seed: int = 0) -> Learner:
    """A model in training, held to itself as it is at the start."""
    cfg = config.train
    model = tiny_model(seed)
    reference = tiny_model(seed).requires_grad_(False) if cfg.kl_beta > 0 else None
    if cfg.packing:
        for one in filter(None, (model, reference)):
            packing.enable(one)
    if cfg.gradient_checkpointing:
        checkpoint_activations(model)
    half = cfg.dtype == "bfloat16"
    return Learner(model, reference, make_optimizer(model, cfg), torch.device("cpu"), half, cfg.packing)


def said(
    rng: random.Random, model: Any, count: int, *, noise: float = 0.0, temperature: float = 1.0
) -> list[TokenRecord]:
    """Random prompts and completions with their log-probs under `model`, off by up to `noise`."""
    prompts = [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(3, 20))] for _ in range(count)]
    answers = [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(count)]
    with torch.no_grad():
        logp, mask, _ = completion_logprobs(model, prompts, answers, temperature)
    records = []
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        logprobs = [x + rng.uniform(-noise, noise) for x in logp[i][mask[i]].tolist()]
        stored = torch.tensor(logprobs, dtype=torch.float32).tolist()
        records.append(TokenRecord(prompt, answer, stored, {"temperature": temperature}, "stop"))
    return records


def group(
    rewards: Sequence[Sequence[float | None]],
    *,
    number: int = 1,
    records: Sequence[TokenRecord] = (),
    step: int = 0,
) -> list[Sample]:
    """Samples of one group; `rewards` by member and turn."""
    plain = TokenRecord([3], [4, 5], [-1.0, -2.0], {}, "stop")
    out: list[Sample] = []
    for member, turns in enumerate(rewards):
        for ordinal, reward in enumerate(turns):
            record = records[len(out)] if records else plain
            turn = 1000 * number + len(out)
            out.append(Sample(turn, 100 * number + member, number, 1, member, ordinal, step, reward, record))
    return out


def changed(sample: Sample, **values: Any) -> Sample:
    """The sample with other tokens, e.g. ``finish_reason="length"``."""
    return replace(sample, tokens=replace(sample.tokens, **values))
