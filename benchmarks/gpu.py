"""Policy and trainer on one GPU: sampling and an update at Qwen2-0.5B's shape, with random weights.

    python benchmarks/gpu.py

Prints tokens per second, peak memory, how far the sampler's log-probs are from the trainer's, and whether a
checkpoint continues where it was written. Fails when the log-probs differ by more than ALLOWED on average.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from kpipe.config import Config, load
from kpipe.policy import tiny
from kpipe.policy.base import Suggestion, SuggestRequest
from kpipe.policy.local import LocalPolicy
from kpipe.train import checkpoint
from kpipe.train.checkpoint import TrainerState
from kpipe.train.learner import Learner
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Row, Update

SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
ROWS, NEW_TOKENS, WORDS = 64, 256, 700
ALLOWED = 0.02
SETTINGS = (
    "policy.dtype=bfloat16",
    f"policy.max_new_tokens={NEW_TOKENS}",
    "train.dtype=bfloat16",
    "train.mini_batch_size=8",
    "train.gradient_accumulation_steps=4",
    "train.ppo_epochs=2",
)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a GPU.")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    config = load(preset="seed", overrides=SETTINGS).config
    with tempfile.TemporaryDirectory() as scratch:
        base = make_base(Path(scratch) / "base")
        said = sampling(config, base)
        updating(config, base, Path(scratch) / "next", said)


def make_base(path: Path) -> Path:
    """Random weights; the tiny policy's tokenizer knows few of the vocabulary's ids, which costs the same."""
    tokenizer = tiny.make_tokenizer(["a kernel that adds and multiplies"])
    torch.manual_seed(0)
    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE, **ids))
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def sampling(config: Config, base: Path) -> list[Suggestion]:
    policy = LocalPolicy(config.policy, base)
    requests = [SuggestRequest("add " * (WORDS + i), i) for i in range(ROWS)]
    policy.suggest(requests[:4])  # warm-up
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    said = policy.suggest(requests)
    seconds = time.perf_counter() - started
    new, read = (
        sum(len(x) for x in xs) for xs in zip(*((s.completion_ids, s.prompt_ids) for s in said), strict=True)
    )
    print(
        f"sampling: {ROWS} rows, {read / ROWS:.0f} prompt and {new / ROWS:.0f} new tokens each: {new / seconds:,.0f} new tokens/s"
    )
    print(f"  peak {gib():.1f} GiB")
    return said


def updating(config: Config, base: Path, target: Path, said: list[Suggestion]) -> None:
    learner = Learner.load(base, base, config.train)
    rows = [Row(s.prompt_ids, s.completion_ids, s.logprobs, (-1.0) ** i) for i, s in enumerate(said)]
    for step in (1, 2):  # the first one warms up
        watch = Stopwatch(learner.device)
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        learned = Update(learner, rows, config, seed=0, step=step, watch=watch).run()
        seconds = time.perf_counter() - started
        if step == 1:
            mismatch = learned.metrics["mismatch_k3"]
            print(f"sampler and trainer differ by a KL (k3) of {mismatch:.2e} per token, in bfloat16")
    parts = ", ".join(f"{name} {spent:.2f} s" for name, spent in watch.seconds.items())
    print(
        f"update: {learned.tokens:,} tokens in {seconds:.2f} s: {learned.tokens / seconds:,.0f} tokens/s, peak {gib():.1f} GiB ({parts})"
    )
    continues(config, learner, base, target)
    if mismatch > ALLOWED:
        sys.exit("The sampler's log-probs are not the trainer's.")


def continues(config: Config, learner: Learner, base: Path, target: Path) -> None:
    """A checkpoint, read back, holds the same parameters and optimizer state."""
    target.mkdir()
    started = time.perf_counter()
    checkpoint.write(target, learner, base, TrainerState(2, 0, "benchmark", torch.__version__))
    seconds = time.perf_counter() - started
    again = Learner.load(target, base, config.train)
    checkpoint.restore_optimizer(again, target)
    pairs = zip(learner.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    size = sum(f.stat().st_size for f in target.iterdir()) / 2**30
    print(f"checkpoint: {size:.1f} GiB written in {seconds:.1f} s, read back equal")


def gib() -> float:
    return torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
