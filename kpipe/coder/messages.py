"""What an LLM coder is sent, and the key under which its answer is stored."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Any

from kpipe.assets import asset
from kpipe.coder.base import CoderRequest
from kpipe.config import CoderConfig
from kpipe.domain.verdict import Outcome

Messages = list[dict[str, str]]

EVIDENCE_CHARS = 4000
"""Of a longer log the beginning and the end are shown: the first error and the last line tell most."""
TAIL_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `text` holds all that determines the answer, as JSON; `key` is its digest."""

    messages: Messages
    text: str

    @property
    def key(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def ask(request: CoderRequest, cfg: CoderConfig, *, base_url: str, device: str) -> Asked:
    """The request as messages. `base_url` is the address without anything secret."""
    words = _words()
    messages = [
        {"role": "system", "content": _fill(words["system"], target=words["target"][device])},
        {
            "role": "user",
            "content": _fill(
                words["user"],
                problem=request.problem.name,
                reference=request.problem.source.strip(),
                current=_current(request),
                suggestion=request.suggestion.strip() or "none",
            ),
        },
    ]
    determining = {
        "model": cfg.model,
        "base_url": base_url,
        "temperature": cfg.temperature,
        "max_tokens": cfg.max_tokens,
        "messages": messages,
        "reminder": words["reminder"],
        **({"sample": request.sample} if request.sample else {}),
    }
    return Asked(messages, json.dumps(determining, ensure_ascii=False, sort_keys=True))


def remind(messages: Messages, reply: str) -> Messages:
    """The conversation after a reply without code."""
    return _after(messages, reply, "reminder")


def go_on(messages: Messages, reply: str) -> Messages:
    """The conversation after a reply that was cut off."""
    return _after(messages, reply, "go_on")


def _after(messages: Messages, reply: str, words: str) -> Messages:
    said = [{"role": "assistant", "content": _clean(reply)}] if reply.strip() else []
    return [*messages, *said, {"role": "user", "content": _words()[words]}]


def _current(request: CoderRequest) -> str:
    words = _words()
    if request.kernel == request.problem.source:
        return str(words["start"])
    failure = ""
    if request.outcome not in (None, Outcome.CORRECT, Outcome.UNCHANGED):
        outcome = request.outcome.value.replace("_", " ")
        failure = _fill(words["failure"], outcome=outcome, evidence=shorten(request.evidence) or "nothing")
    return _fill(words["current"], kernel=request.kernel.strip(), failure=failure)


def shorten(text: str, limit: int = EVIDENCE_CHARS) -> str:
    """At most `limit` characters and a mark: the beginning, and a quarter of it from the end."""
    text = text.strip()
    if len(text) <= limit:
        return text
    tail = int(limit * TAIL_SHARE)
    return f"{text[: limit - tail].rstrip()}\n[...]\n{text[-tail:].lstrip()}"


def _fill(template: str, **values: str) -> str:
    return _clean(Template(template).substitute(values))


def _clean(text: str) -> str:
    """Text that JSON in UTF-8 can carry: a lone surrogate, which no API takes, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


@cache
def _words() -> dict[str, Any]:
    """The shipped texts, without the line end that TOML keeps before a closing quote."""
    tree = tomllib.loads(asset("coder/prompts/default.toml").read_text(encoding="utf-8"))
    return {name: text.removesuffix("\n") if isinstance(text, str) else text for name, text in tree.items()}
