"""Supervised fine-tuning on prompts and suggestions: the usual cold start before any reward.

The loss is the mean negative log-probability of the suggestions' tokens, end token included; prompts are
read, not learned. It runs on the machinery of the update: packing, budgets of tokens, adapters.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kpipe.config import TrainConfig
from kpipe.errors import TrainError, UsageError
from kpipe.policy.chat import encode
from kpipe.policy.checkpoint import read_tokenizer
from kpipe.policy.files import ensure_directory
from kpipe.store.records import Example
from kpipe.train import checkpoint
from kpipe.train.learner import Learner
from kpipe.train.memory import is_out_of_memory
from kpipe.train.update import even_parts, micro_batches

RISE = 0.1
"""Share of the steps over which the learning rate rises; then it falls along half a cosine."""

Pair = tuple[list[int], list[int]]
"""Token ids of a prompt and of what is to be said."""


@dataclass(frozen=True, slots=True)
class Finetuned:
    """Mean loss in nats per token of every pass, and what was learned from."""

    losses: list[float]
    examples: int
    too_long: int
    digest: str


def read_pairs(path: Path) -> list[Example]:
    """Examples of a JSONL file, one object with "prompt" and "suggestion" a line. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as text ({type(error).__name__}).", "Check the path."
        ) from None
    found = [_pair(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{path} holds no examples.", 'A line is {"prompt": "...", "suggestion": "..."}.')
    return found


def _pair(path: Path, number: int, line: str) -> Example:
    try:
        row = json.loads(line)
        prompt, suggestion = row["prompt"], row["suggestion"]
    except (ValueError, KeyError, TypeError):
        prompt = suggestion = None
    if not (isinstance(prompt, str) and isinstance(suggestion, str) and prompt and suggestion):
        raise UsageError(
            f"Line {number} of {path} is no example.", 'A line is {"prompt": "...", "suggestion": "..."}.'
        )
    return Example(prompt, suggestion, 0.0)


def finetune(
    model: Path,
    to: Path,
    examples: Sequence[Example],
    cfg: TrainConfig,
    *,
    epochs: int,
    batch_size: int,
    max_tokens: int,
    seed: int,
    told: Callable[[int, int, float], None] = lambda *_: None,
) -> Finetuned:
    """Train the policy at `model` on `examples` and write the result to the new directory `to`.

    Examples of more than `max_tokens` tokens are left out. `told` hears step, last step and loss. The same
    arguments give the same bits on the CPU. Raises KpipeError.
    """
    if to.exists():
        raise UsageError(f"{to} exists already.", "Give a new directory to --to.")
    tokenizer = read_tokenizer(model)
    pairs = encoded(tokenizer, examples)
    kept = [p for p in pairs if len(p[0]) + len(p[1]) <= max_tokens]
    if not kept:
        raise TrainError(
            f"None of the {len(pairs)} examples has at most {max_tokens:,} tokens.",
            "Raise --max-tokens, or give shorter examples.",
        )
    learner = Learner.load(model, model, cfg.model_copy(update={"kl_beta": 0.0}))
    try:
        losses = _passes(learner, kept, cfg, epochs, batch_size, random.Random(seed), told)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainError(
            f"The fine-tuning does not fit into the memory of {learner.device}.",
            "Try --set train.mini_batch_size=1 --set train.gradient_checkpointing=true, or a lower --max-tokens.",
        ) from None
    digest = ensure_directory(
        to, f"warm start of {model}", lambda path: checkpoint.write_model(path, learner, model)
    )
    return Finetuned(losses, len(kept), len(pairs) - len(kept), digest)


def encoded(tokenizer: Any, examples: Sequence[Example]) -> list[Pair]:
    """As the policy would have sampled them: the chat template before, the end token behind."""
    prompts = encode(tokenizer, [e.prompt for e in examples])
    said = tokenizer([e.suggestion for e in examples], add_special_tokens=False)["input_ids"]
    return [(p, [*ids, tokenizer.eos_token_id]) for p, ids in zip(prompts, said, strict=True)]


def _passes(
    learner: Learner,
    pairs: Sequence[Pair],
    cfg: TrainConfig,
    epochs: int,
    batch_size: int,
    rng: random.Random,
    told: Callable[[int, int, float], None],
) -> list[float]:
    last, step, losses = epochs * -(-len(pairs) // batch_size), 0, []
    for _ in range(epochs):
        order, seen = rng.sample(range(len(pairs)), len(pairs)), []
        for chosen in even_parts(order, batch_size):
            for group in learner.optimizer.param_groups:
                group["lr"] = cfg.learning_rate * _share_of_rate(step, last)
            seen.append(_step(learner, [pairs[i] for i in chosen], cfg))
            step += 1
            told(step, last, seen[-1])
        losses.append(fmean(seen))
    return losses


def _step(learner: Learner, pairs: Sequence[Pair], cfg: TrainConfig) -> float:
    """One optimizer step; its loss before."""
    sizes = {i: len(prompt) + len(said) for i, (prompt, said) in enumerate(pairs)}
    budget = cfg.max_tokens_per_micro_batch
    limit = len(pairs) if budget else cfg.mini_batch_size
    tokens = sum(len(said) for _, said in pairs)
    total = 0.0
    for part in micro_batches(sizes, limit, budget=budget, packed=cfg.packing):
        prompts, said = [pairs[i][0] for i in part], [pairs[i][1] for i in part]
        logp_BT, _, _ = learner.logprobs(learner.model, prompts, said, 1.0, entropy=False)
        loss = -logp_BT.sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    learner.step(cfg.max_grad_norm)
    return total


def _share_of_rate(step: int, last: int) -> float:
    rise = max(1, round(RISE * last))
    return min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / last))
