"""What is said to servers that sample: vLLM's /v1/completions and SGLang's /generate, token ids in and out.

Pure functions of requests and replies. Both are asked for the whole distribution: no top-k, no top-p, no penalties,
whatever the model's own generation config says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kpipe.errors import PolicyError

_TOKEN_ID = re.compile(r"token_id:(\d+)")
_ROUNDING = 1e-3
"""How far above 0 a server's arithmetic may put a log-probability."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion. `top`: how many of the likeliest first tokens to report as well."""

    model: str
    prompt: Sequence[int]
    temperature: float
    max_tokens: int
    stop: frozenset[int]
    seed: int
    top: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """`top` has log-probabilities of first tokens by token id."""

    ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    top: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A POST: path below the server's root, JSON body, query."""

    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)


class Wire(Protocol):
    """One server's dialect. `flags` is how it must be started."""

    name: str
    flags: str

    def ask(self, ask: Ask) -> Call: ...

    def answer(self, ask: Ask, reply: Any) -> Answer:
        """Raises PolicyError for a reply that cannot be trained on."""

    def load_adapter(self, name: str, path: str) -> Call: ...

    def unload_adapter(self, name: str) -> Call: ...

    def reload(self, path: str, version: int) -> list[Call]:
        """Calls that put the weights at `path` in the place of the served ones; the last is made in any case."""


class VLLM:
    """Also any other server with OpenAI's completions that takes and gives token ids."""

    name = "vllm"
    flags = "Start vLLM with --logprobs-mode processed_logprobs --generation-config vllm."

    def ask(self, ask: Ask) -> Call:
        body = {
            "model": ask.model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stop_token_ids": sorted(ask.stop),
            "logprobs": max(1, ask.top),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "n": 1,
            "stream": False,
            **{"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
            **{"presence_penalty": 0.0, "frequency_penalty": 0.0},
        }
        return Call("/v1/completions", body)

    def answer(self, ask: Ask, reply: Any) -> Answer:
        choices = _get(reply, "choices", list)
        if not choices:
            raise self._bad("answers without choices")
        choice = choices[0]
        given = _get(choice, "logprobs", dict)
        if not given or not isinstance(given.get("token_logprobs"), list):
            raise self._bad("gives no log-probabilities")
        ids = choice.get("token_ids")
        if ids is None:
            ids = [_token_id(token) for token in given.get("tokens") or ()]
        if not ids or None in ids:
            raise self._bad("gives no token ids")
        read = choice.get("prompt_token_ids", reply.get("prompt_token_ids"))
        if read is not None and list(read) != list(ask.prompt):
            raise self._bad("reads other tokens than it was sent")
        first = next(iter(given.get("top_logprobs") or [{}]), None) or {}
        top = {i: float(value) for token, value in first.items() if (i := _token_id(token)) is not None}
        return _checked(self, ask, ids, given["token_logprobs"], choice.get("finish_reason"), top)

    def load_adapter(self, name: str, path: str) -> Call:
        return Call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload_adapter(self, name: str) -> Call:
        return Call("/v1/unload_lora_adapter", {"lora_name": name})

    def reload(self, path: str, version: int) -> list[Call]:
        # Who else uses the server gets to the end of what was begun; both spellings of that are sent.
        wait = {"mode": "wait", "wait_for_inflight_requests": "true", "clear_cache": "true"}
        return [
            Call("/pause", query=wait),
            Call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}),
            Call("/reset_prefix_cache"),
            Call("/resume"),
        ]

    def _bad(self, what: str) -> PolicyError:
        return not_conforming(self, what)


class SGLang:
    name = "sglang"
    flags = "Start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, and with --sampling-defaults openai."

    def ask(self, ask: Ask) -> Call:
        sampling = {
            "temperature": ask.temperature,
            "max_new_tokens": ask.max_tokens,
            "stop_token_ids": sorted(ask.stop),
            "sampling_seed": ask.seed & 0x7FFFFFFF,
            **{"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
            **{"presence_penalty": 0.0, "frequency_penalty": 0.0},
            **{"skip_special_tokens": False, "no_stop_trim": True},
        }
        body: dict[str, Any] = {
            "input_ids": list(ask.prompt),
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": ask.top,
            "stream": False,
        }
        return Call("/generate", {**body, "lora_path": ask.model} if ask.model else body)

    def answer(self, ask: Ask, reply: Any) -> Answer:
        if isinstance(reply, list) and len(reply) == 1:
            reply = reply[0]
        meta = _get(reply, "meta_info", dict)
        given = meta.get("output_token_logprobs") if meta else None
        if not isinstance(given, list) or not all(isinstance(row, list) and len(row) >= 2 for row in given):
            raise not_conforming(self, "gives no log-probabilities")
        finish = meta.get("finish_reason")
        kind = finish.get("type") if isinstance(finish, dict) else finish
        ids, logprobs = [row[1] for row in given], [row[0] for row in given]
        said = reply.get("output_ids")
        if said is not None and list(said) != ids:
            raise not_conforming(self, "gives log-probabilities of other tokens than it sampled")
        first = next(iter(meta.get("output_top_logprobs") or [[]]), None) or []
        return _checked(self, ask, ids, logprobs, kind, {int(row[1]): float(row[0]) for row in first})

    def load_adapter(self, name: str, path: str) -> Call:
        return Call("/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload_adapter(self, name: str) -> Call:
        return Call("/unload_lora_adapter", {"lora_name": name})

    def reload(self, path: str, version: int) -> list[Call]:
        return [
            Call(
                "/update_weights_from_disk",
                {"model_path": path, "flush_cache": True, "weight_version": str(version)},
            )
        ]


def not_conforming(wire: Wire, what: str) -> PolicyError:
    return PolicyError(f"The policy server {what}: its samples cannot be trained on.", wire.flags)


def _checked(wire: Wire, ask: Ask, ids: Any, logprobs: Any, finish: Any, top: dict[int, float]) -> Answer:
    """Ids and log-probabilities that belong together."""
    if not ids or not all(isinstance(i, int) for i in ids):
        raise not_conforming(wire, "gives no token ids")
    if len(ids) != len(logprobs):
        raise not_conforming(wire, f"gives {len(logprobs)} log-probabilities for {len(ids)} tokens")
    if len(ids) > ask.max_tokens:
        raise not_conforming(wire, f"samples {len(ids)} tokens where {ask.max_tokens} were asked for")
    if not all(isinstance(v, int | float) and math.isfinite(v) and v <= _ROUNDING for v in logprobs):
        raise not_conforming(wire, "gives log-probabilities that are none")
    if finish not in ("stop", "length"):
        raise not_conforming(wire, f"ends a suggestion for the reason {finish!r}")
    if finish == "stop" and ids[-1] not in ask.stop:
        raise not_conforming(wire, "leaves the end token out of the sampled ids, or stops at other tokens")
    return Answer(list(ids), [min(0.0, float(v)) for v in logprobs], finish, top)


def _get(tree: Any, key: str, kind: type) -> Any:
    value = tree.get(key) if isinstance(tree, dict) else None
    return value if isinstance(value, kind) else None


def _token_id(token: Any) -> int | None:
    found = _TOKEN_ID.fullmatch(token) if isinstance(token, str) else None
    return int(found[1]) if found else None
