"""The port between whoever asks for suggestions and the model that makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length", "prompt_too_long"]


@dataclass(frozen=True, slots=True)
class SuggestRequest:
    """`prompt` is the user message, before any chat template; `seed` alone decides what is drawn for it.

    Where it has more tokens than the policy takes, the first of the `shorter` ones that fits is read instead.
    """

    prompt: str
    seed: int
    shorter: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What was said, and what an update needs to know about it.

    `completion_ids` are exactly the sampled tokens, the end token included; `logprobs` their natural
    log-probabilities after the temperature. A prompt that is too long has neither. `prompt` is set where a
    shorter one than asked for was read.
    """

    text: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    sampling: Mapping[str, Any]
    prompt: str = ""


class Policy(Protocol):
    """A model of one known version. Not safe for calls from two threads at the same time."""

    version: int

    def room(self, prompts: Sequence[str]) -> list[int]:
        """For each user message, how many tokens it leaves free of the longest that is taken; below 0: too long."""

    def suggest(self, requests: Sequence[SuggestRequest]) -> list[Suggestion]:
        """One suggestion per request, in the order of the requests. Raises PolicyError."""

    def load(self, path: str, version: int) -> None:
        """Continue with the weights at `path`. Raises PolicyError and keeps the old ones."""
