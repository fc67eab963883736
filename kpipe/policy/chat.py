"""From a user message to the token ids that the model continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe.policy.base import Suggestion, SuggestRequest


def encode(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each user message in the checkpoint's chat template, up to where the assistant begins."""
    if not prompts:
        return []
    texts = tokenizer.apply_chat_template(
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        add_generation_prompt=True,
        tokenize=False,
    )
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class Fitted:
    """The token ids that are read, of `prompt` if that is not the request's own; `ids` may still be too long."""

    ids: list[int]
    prompt: str = ""
    trims: int = 0

    def note(self) -> dict[str, int]:
        """What is stored with the sample."""
        return {"prompt_trims": self.trims} if self.trims else {}


def too_long(fitted: Fitted, sampling: Mapping[str, Any]) -> Suggestion:
    """The answer to a prompt that does not fit, however much was taken out of it."""
    return Suggestion("", fitted.ids, [], [], "prompt_too_long", sampling, fitted.prompt)


def fit(tokenizer: Any, requests: Sequence[SuggestRequest], limit: int) -> list[Fitted]:
    """Each request's prompt, or the first of its shorter ones that has at most `limit` tokens, or its shortest."""
    fitted = [Fitted(ids) for ids in encode(tokenizer, [r.prompt for r in requests])]
    for i, request in enumerate(requests):
        for trims, text in enumerate(request.shorter, 1):
            if len(fitted[i].ids) <= limit:
                break
            fitted[i] = Fitted(encode(tokenizer, [text])[0], text, trims)
    return fitted


def stop_ids(tokenizer: Any, config: Any) -> frozenset[int]:
    """Tokens that end a suggestion: the tokenizer's end token and those of the model's configuration."""
    configured = config.eos_token_id
    more = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in (tokenizer.eos_token_id, *more) if token is not None)


def fingerprint(tokenizer: Any) -> dict[str, str]:
    """Short hashes of what turns text into tokens, to be stored with every sample."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    body = backend.to_str() if backend else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return {"tokenizer": _short_sha(body), "chat_template": _short_sha(str(tokenizer.chat_template))}


def _short_sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
