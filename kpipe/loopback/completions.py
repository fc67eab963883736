"""Completions of token ids with log-probabilities, in the shapes of vLLM and of SGLang, and their weights.

`Completions` owns the routes and the two protocols; an `Engine` makes the tokens. Known to differ from the
real servers: no streaming, no alternatives beside the sampled token, no top-k.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEFAULT_TOKENS = {"vllm": 16, "sglang": 128}
"""Length limit where a request names none, as the two servers have it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One completion. `seed` None draws a fresh one. `stop` holds more tokens that end it."""

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: frozenset[int] = frozenset()
    ignore_end: bool = False


@dataclass(frozen=True, slots=True)
class Continuation:
    """Sampled tokens with the end token, and their log-probabilities; `text` is without special tokens."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    stopped: bool


class Engine(Protocol):
    """A model. Its methods block, and are called from one thread at a time."""

    name: str
    context: int
    """Tokens of prompt and completion together."""
    vocabulary: int

    def encode(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> str:
        """The text of one token."""

    def generate(self, wanted: Sequence[Wanted], model: str) -> list[Continuation]:
        """`model` is the engine's name or that of a loaded adapter."""

    def load(self, path: str) -> None:
        """Take other weights of the same model. Raises ValueError."""

    def load_adapter(self, name: str, path: str) -> None:
        """Raises ValueError when there is no adapter at `path`."""

    def unload_adapter(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a server may lack: a client has to find out before it samples.

    `processed` False gives log-probabilities before the temperature, as both servers do by default.
    """

    token_ids: bool = True
    logprobs: bool = True
    processed: bool = True


class Refusal(Exception):
    """An answer of the API with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Completions:
    """The routes of a policy server over one engine. `adapters`: path by name."""

    engine: Engine
    quirks: Quirks = Quirks()
    adapters: dict[str, str] = field(default_factory=dict)
    weights: int = 0
    """How often the weights were replaced."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def routes(self) -> dict[str, Handler]:
        """POST handlers by path."""
        return {
            "/v1/completions": self.openai,
            "/generate": self.sglang,
            "/v1/load_lora_adapter": self.load_adapter,
            "/v1/unload_lora_adapter": self.unload_adapter,
            "/update_weights_from_disk": self.update_weights,
        }

    def cards(self) -> list[dict[str, Any]]:
        """Of the model and its adapters, for /v1/models."""
        base = {
            **_card(self.engine.name),
            "root": self.engine.name,
            "max_model_len": self.engine.context,
        }
        return [
            base,
            *(
                {**_card(name), "root": path, "parent": self.engine.name}
                for name, path in self.adapters.items()
            ),
        ]

    async def openai(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions, with the fields that vLLM adds."""
        try:
            asked = await _json(request)
            model = self._model(str(asked.get("model") or self.engine.name))
            prompts = self._prompts(asked.get("prompt"))
            _refuse_unknown(asked)
            wanted = [w for p in prompts for w in self._wanted(p, asked, _count(asked, "n", 1))]
            made = await self._generate(wanted, model)
        except Refusal as refusal:
            return _vllm_error(refusal)
        choices = [self._choice(i, w, c, asked) for i, (w, c) in enumerate(zip(wanted, made, strict=True))]
        body = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": choices,
            "usage": _usage(sum(map(len, prompts)), sum(len(c.ids) for c in made)),
        }
        return web.json_response(body)

    async def sglang(self, request: web.Request) -> web.StreamResponse:
        """POST /generate of SGLang."""
        try:
            asked = await _json(request)
            given = asked.get("input_ids", asked.get("text"))
            prompts = self._prompts(given)
            params = asked.get("sampling_params") or {}
            several = [params] * len(prompts) if isinstance(params, dict) else params
            if len(several) != len(prompts):
                raise Refusal(400, "The length of sampling_params should be equal to the batch size.")
            model = self._model(str(asked.get("lora_path") or self.engine.name))
            wanted = [
                w
                for p, each in zip(prompts, several, strict=True)
                for w in self._wanted(p, _as_openai(each), _count(each, "n", 1))
            ]
            made = await self._generate(wanted, model)
        except Refusal as refusal:
            return web.json_response({"error": {"message": refusal.message}}, status=refusal.status)
        answers = [self._sglang_answer(w, c, asked) for w, c in zip(wanted, made, strict=True)]
        one = len(answers) == 1 and (
            isinstance(given, str) or not (isinstance(given, list) and isinstance(given[0], list | str))
        )
        return web.json_response(answers[0] if one else answers)

    async def load_adapter(self, request: web.Request) -> web.StreamResponse:
        try:
            name, path = await _names(request, "lora_name", "lora_path")
            if name in self.adapters:
                raise Refusal(400, f"The lora adapter '{name}' has already been loaded.")
            async with self._lock:
                try:
                    await asyncio.to_thread(self.engine.load_adapter, name, path)
                except ValueError as error:
                    raise Refusal(404, f"Loading lora {name} failed: {error}") from None
        except Refusal as refusal:
            return _vllm_error(refusal)
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.StreamResponse:
        try:
            (name,) = await _names(request, "lora_name")
            if name not in self.adapters:
                raise Refusal(404, f"The lora adapter '{name}' cannot be found.")
        except Refusal as refusal:
            return _vllm_error(refusal)
        async with self._lock:
            await asyncio.to_thread(self.engine.unload_adapter, name)
        del self.adapters[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def update_weights(self, request: web.Request) -> web.StreamResponse:
        """POST /update_weights_from_disk of SGLang: the engine's weights are replaced between two batches."""
        try:
            (path,) = await _names(request, "model_path")
            async with self._lock:
                await asyncio.to_thread(self.engine.load, path)
        except (Refusal, ValueError) as error:
            return web.json_response({"success": False, "message": str(error)}, status=400)
        self.weights += 1
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})

    async def _generate(self, wanted: list[Wanted], model: str) -> list[Continuation]:
        async with self._lock:
            return await asyncio.to_thread(self.engine.generate, wanted, model)

    def _model(self, name: str) -> str:
        if name != self.engine.name and name not in self.adapters:
            raise Refusal(404, f"The model `{name}` does not exist.")
        return name

    def _prompts(self, given: Any) -> list[list[int]]:
        """A text, a list of texts, token ids, or a list of those."""
        if isinstance(given, str):
            return [self.engine.encode(given)]
        if not isinstance(given, list) or not given:
            raise Refusal(400, "prompt must be a text, a list of token ids, or a list of one of them.")
        several = given if isinstance(given[0], list | str) else [given]
        prompts = [self.engine.encode(p) if isinstance(p, str) else p for p in several]
        for prompt in prompts:
            self._check_ids(prompt)
        return prompts

    def _check_ids(self, prompt: Any) -> None:
        if not isinstance(prompt, list) or not prompt:
            raise Refusal(400, "The decoder prompt cannot be empty.")
        for token in prompt:
            if not isinstance(token, int) or isinstance(token, bool):
                raise Refusal(400, f"{token!r} is no token id.")
            if not 0 <= token < self.engine.vocabulary:
                raise Refusal(400, f"Token id {token} is out of vocabulary.")

    def _wanted(self, prompt: list[int], asked: dict[str, Any], n: int) -> list[Wanted]:
        """`n` completions of one prompt: the i-th has the seed + i, as vLLM does it."""
        limit = _count(asked, "max_tokens", DEFAULT_TOKENS["vllm"])
        if len(prompt) + limit > self.engine.context:
            raise Refusal(
                400,
                f"This model's maximum context length is {self.engine.context} tokens. However, you requested "
                f"{len(prompt) + limit} tokens ({len(prompt)} in the messages, {limit} in the completion).",
            )
        temperature, top_p = _number(asked, "temperature", 1.0), _number(asked, "top_p", 1.0)
        if temperature < 0 or not 0 < top_p <= 1:
            raise Refusal(400, "temperature must be at least 0, and top_p in (0, 1].")
        seed = asked.get("seed")
        if seed is not None and not isinstance(seed, int):
            raise Refusal(400, "seed must be an integer.")
        stop = frozenset(asked.get("stop_token_ids") or ())
        return [
            Wanted(
                tuple(prompt),
                limit,
                temperature,
                top_p,
                None if seed is None else seed + i,
                stop,
                bool(asked.get("ignore_eos")),
            )
            for i in range(n)
        ]

    def _choice(
        self, index: int, wanted: Wanted, made: Continuation, asked: dict[str, Any]
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": made.text,
            "logprobs": None,
            "finish_reason": "stop" if made.stopped else "length",
            "stop_reason": None,
        }
        if asked.get("logprobs") is not None and self.quirks.logprobs:
            choice["logprobs"] = self._logprobs(made, bool(asked.get("return_tokens_as_token_ids")))
        if asked.get("return_token_ids") and self.quirks.token_ids:
            choice |= {"token_ids": list(made.ids), "prompt_token_ids": list(wanted.prompt)}
        return choice

    def _logprobs(self, made: Continuation, by_id: bool) -> dict[str, Any]:
        tokens = [f"token_id:{t}" if by_id else self.engine.piece(t) for t in made.ids]
        ends = list(itertools.accumulate(map(len, tokens), initial=0))
        return {
            "tokens": tokens,
            "token_logprobs": list(made.logprobs),
            "top_logprobs": [{t: p} for t, p in zip(tokens, made.logprobs, strict=True)],
            "text_offset": ends[:-1],
        }

    def _sglang_answer(self, wanted: Wanted, made: Continuation, asked: dict[str, Any]) -> dict[str, Any]:
        finish = (
            {"type": "stop", "matched": made.ids[-1]}
            if made.stopped
            else {"type": "length", "length": wanted.max_tokens}
        )
        meta: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "finish_reason": finish,
            "prompt_tokens": len(wanted.prompt),
            "completion_tokens": len(made.ids),
            "cached_tokens": 0,
            "weight_version": str(self.weights),
        }
        if asked.get("return_logprob") and self.quirks.logprobs:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [
                [p, t, None] for p, t in zip(made.logprobs, made.ids, strict=True)
            ]
        answer: dict[str, Any] = {"text": made.text, "meta_info": meta}
        if self.quirks.token_ids:
            answer["output_ids"] = list(made.ids)
        return answer


def _as_openai(params: Any) -> dict[str, Any]:
    """SGLang's names of sampling parameters."""
    if not isinstance(params, dict):
        raise Refusal(400, "sampling_params must be an object.")
    _refuse_unknown(params)
    limit = params.get("max_new_tokens", DEFAULT_TOKENS["sglang"])
    return {**params, "max_tokens": limit, "seed": params.get("sampling_seed")}


def _refuse_unknown(asked: dict[str, Any]) -> None:
    """What would change the distribution and is not built here must not be ignored quietly."""
    for name, harmless in (("top_k", (None, 0, -1)), ("min_p", (None, 0)), ("stream", (None, False))):
        if asked.get(name) not in harmless:
            raise Refusal(400, f"The loopback server does not support {name} = {asked[name]}.")
    for name, none in (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1)):
        if asked.get(name) not in (None, none):
            raise Refusal(400, f"The loopback server does not support {name} = {asked[name]}.")


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        tree = await request.json()
    except ValueError:
        raise Refusal(400, "The body is no JSON.") from None
    if not isinstance(tree, dict):
        raise Refusal(400, "The body must be an object.")
    return tree


async def _names(request: web.Request, *names: str) -> tuple[str, ...]:
    tree = await _json(request)
    for name in names:
        if not isinstance(tree.get(name), str) or not tree[name]:
            raise Refusal(400, f"{name} must be provided.")
    return tuple(tree[name] for name in names)


def _count(asked: dict[str, Any], name: str, default: int) -> int:
    value = asked.get(name, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refusal(400, f"{name} must be at least 1, got {value!r}.")
    return value


def _number(asked: dict[str, Any], name: str, default: float) -> float:
    value = asked.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refusal(400, f"{name} must be a number.")
    return float(value)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "loopback"}


def _vllm_error(refusal: Refusal) -> web.Response:
    kind = "NotFoundError" if refusal.status == 404 else "BadRequestError"
    error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.status}
    return web.json_response({"error": error}, status=refusal.status)
