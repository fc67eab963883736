"""The built-in policy, made on the spot: Qwen2 in small, with a tokenizer and a warm start of its own.

It starts out knowing how suggestions are worded and nothing about which of them help.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kpipe import problems
from kpipe.config import Config
from kpipe.domain.prompt import load_template
from kpipe.policy import grammar
from kpipe.policy.files import ensure_directory

VOCABULARY = 1024
TOKENIZER_PROMPTS = 2000
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}
"""About 0.7 M parameters: sampling and updating takes seconds on one core."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def ensure(path: Path, config: Config, progress: Callable[[float], None] | None = None) -> str:
    """Build the policy into `path` unless it is there already, and return its digest.

    The same configuration, seed, machine and number of threads give the same digest. `progress` hears the
    finished share, 0 to 1. Killed at any point, it leaves nothing or all. Raises PolicyError.
    """
    return ensure_directory(path, _recipe(config), lambda partial: _build(partial, config, progress))


def make_tokenizer(texts: Iterable[str]) -> Any:
    """Byte-level BPE of at most VOCABULARY tokens, in the form of Qwen2's own tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    blank = Qwen2Tokenizer().backend_tokenizer
    trained = Tokenizer(models.BPE())
    trained.normalizer, trained.pre_tokenizer = blank.normalizer, blank.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer: Any, seed: int) -> Any:
    """A Qwen2 of SHAPE with random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **SHAPE,
        )
    )


def _sentences() -> list[str]:
    names = tuple(problem.name for problem in problems.builtin())
    return [text for _, text in grammar.all_sentences(names)]


def _recipe(config: Config) -> str:
    """Hash of what the built policy depends on."""
    ingredients = {
        "seed": config.seed,
        "steps": config.policy.warmstart_steps,
        "template": load_template(config.policy.prompt).sha,
        "problems": [(p.level, p.name, p.source) for p in problems.builtin()],
        "sentences": _sentences(),
        "shape": [VOCABULARY, TOKENIZER_PROMPTS, SHAPE],
    }
    return hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()


def _build(path: Path, config: Config, progress: Callable[[float], None] | None) -> None:
    from kpipe.policy.checkpoint import quiet
    from kpipe.policy.warmstart import Examples, finetune

    quiet()
    examples = Examples(problems.builtin(), load_template(config.policy.prompt))
    rng = random.Random(config.seed)
    prompts = [examples.prompt(rng)[0] for _ in range(TOKENIZER_PROMPTS)]
    tokenizer = make_tokenizer([*_sentences(), *prompts])
    model = make_model(tokenizer, config.seed)
    finetune(model, tokenizer, examples, config.policy.warmstart_steps, config.seed, progress)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
