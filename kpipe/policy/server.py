"""A policy behind HTTP: vLLM, SGLang or another server that takes token ids and gives ids with log-probabilities.

The chat template is applied here, so that prompt ids are exactly those that an update will see. Before anything is
sampled for a run the server is asked whether its answers can be trained on (`conformance`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kpipe.config import PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy.base import Suggestion, SuggestRequest
from kpipe.policy.chat import Fitted, encode, fingerprint, fit, stop_ids, too_long
from kpipe.policy.checkpoint import locate, read_config, read_tokenizer
from kpipe.policy.conformance import check_answers
from kpipe.policy.files import checkpoint_files, ensure_directory
from kpipe.policy.line import Line, Refused
from kpipe.policy.wire import VLLM, Ask, SGLang, Wire

log = logging.getLogger("kpipe.policy")
T = TypeVar("T")
ADAPTER = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Served:
    """What the server says about itself. `model` is the name to ask for, `context` its longest sequence."""

    wire: Wire
    model: str
    context: int | None
    engine: str


class ServerPolicy:
    """Implements `kpipe.policy.base.Policy`, each call by connections of its own; `ask` and `take_over` are for event loops."""

    def __init__(self, config: PolicyConfig, path: Path, version: int = 0) -> None:
        _need_address(config)
        self.config, self.path, self.version = config, path, version
        self.tokenizer = read_tokenizer(path)
        model_config = read_config(path)
        self._stop = stop_ids(self.tokenizer, model_config)
        self._positions = getattr(model_config, "max_position_embeddings", None)
        self._vocabulary = max(len(self.tokenizer), getattr(model_config, "vocab_size", 0))
        self.served = _blocking(self._connect())
        self.name = self.served.model
        self._sampling = {
            "engine": self.served.engine,
            "temperature": config.temperature,
            "max_new_tokens": config.max_new_tokens,
            **fingerprint(self.tokenizer),
        }

    def room(self, prompts: Sequence[str]) -> list[int]:
        limit = self._longest_prompt()
        return [limit - len(ids) for ids in encode(self.tokenizer, prompts)]

    def suggest(self, requests: Sequence[SuggestRequest]) -> list[Suggestion]:
        async def all_of_them() -> list[Suggestion]:
            places = asyncio.Semaphore(self.config.concurrency)

            async def one(request: SuggestRequest) -> Suggestion:
                async with places:
                    return await self.ask(line, request)

            async with Line(self.config) as line, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(request)) for request in requests]
            return [task.result() for task in tasks]

        return _blocking(all_of_them())

    def load(self, path: str, version: int) -> None:
        async def take_over() -> None:
            async with Line(self.config) as line:
                await self.take_over(line, path, version)

        _blocking(take_over())

    async def ask(self, line: Line, request: SuggestRequest, name: str | None = None) -> Suggestion:
        """One suggestion by the model of that `name` at the server, or the newest. Raises PolicyError."""
        (fitted,) = fit(self.tokenizer, [request], self._longest_prompt())
        sampling = {**self._sampling, "seed": request.seed, **fitted.note()}
        if len(fitted.ids) > self._longest_prompt():
            return too_long(fitted, sampling)
        asked = self._asked(fitted, request.seed, name)
        wire = self.served.wire
        answer = wire.answer(asked, await line.post(wire.ask(asked)))
        stopped = answer.finish == "stop"
        text = self.tokenizer.decode(answer.ids[:-1] if stopped else answer.ids, skip_special_tokens=True)
        return Suggestion(
            text.strip(), fitted.ids, answer.ids, answer.logprobs, answer.finish, sampling, fitted.prompt
        )

    def leaves_others_alone(self, path: str) -> bool:
        """True when loading `path` changes nothing for requests on their way: an adapter gets a new name."""
        return (Path(path) / ADAPTER).is_file()

    async def take_over(self, line: Line, path: str, version: int) -> None:
        """Let the server continue with the weights at `path`, which it must see under the same path.

        Raises PolicyError. Full weights: no request may be on its way.
        """
        if self.leaves_others_alone(path):
            await self._load_adapter(line, path, version)
        else:
            await self._reload(line, path, version)
            self.name = self.served.model
        self.path, self.version = Path(path), version

    async def _load_adapter(self, line: Line, path: str, version: int) -> None:
        wire = self.served.wire
        name = f"kpipe-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}-{version}"
        try:
            await line.post(wire.load_adapter(name, str(path)), patient=False)
        except Refused as error:
            if "already" not in error.message:
                raise _no_adapters(wire, error) from None
        self.name = name

    async def _reload(self, line: Line, path: str, version: int) -> None:
        *calls, last = self.served.wire.reload(str(Path(path).resolve()), version)
        try:
            try:
                for call in calls:
                    await line.post(call, patient=False)
            finally:
                done = await line.post(last, patient=False)
        except PolicyError as error:
            raise _no_reload(self.served.wire, path, error) from None
        if isinstance(done, dict) and done.get("success") is False:
            reason = PolicyError(str(done.get("message", "no reason given"))[:200])
            raise _no_reload(self.served.wire, path, reason)

    async def _connect(self) -> Served:
        """Find the model, check what the server answers, and put the run's weights into it."""
        async with Line(self.config) as line:
            self.served = await _find(line, self.config)
            self.name = self.served.model
            await self._load_first(line)
            if self._longest_prompt() <= 0:
                raise PolicyError(
                    f"The policy server's context of {self.served.context} tokens leaves nothing beside"
                    f" policy.max_new_tokens = {self.config.max_new_tokens}.",
                    "Start it with a longer context (vLLM: --max-model-len), or lower policy.max_new_tokens.",
                )
            (ids,) = encode(self.tokenizer, ["Name any word."])
            await check_answers(line, self.served.wire, self._asked(Fitted(ids), 0), self._vocabulary)
        return self.served

    async def _load_first(self, line: Line) -> None:
        """A server that was just started may serve version 0 without being told; a later one it cannot."""
        try:
            await self.take_over(line, str(self.path), self.version)
        except PolicyError as error:
            if self.version > 0 or not getattr(error, "unknown_route", False):
                raise
            log.warning("%s The first update will stop the collector. %s", error.message, error.fix)

    def _asked(self, fitted: Fitted, seed: int, name: str | None = None) -> Ask:
        c = self.config
        return Ask(
            self.name if name is None else name, fitted.ids, c.temperature, c.max_new_tokens, self._stop, seed
        )

    def _longest_prompt(self) -> int:
        """The configured limit, or what the server's or the model's positions leave beside the new tokens."""
        context = self.served.context or self._positions
        configured = self.config.max_prompt_tokens
        return min(configured, context - self.config.max_new_tokens) if context else configured


async def _find(line: Line, config: PolicyConfig) -> Served:
    """Raises PolicyError when the model is not served there."""
    listed = await line.get("/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(cards, list) or not cards:
        raise PolicyError(f"The policy server at {line.root} lists no model.", "Check policy.base_url.")
    by_name = {str(card.get("id")): card for card in cards if isinstance(card, dict)}
    wanted = config.served_model or (config.model if config.model in by_name else next(iter(by_name), ""))
    if wanted not in by_name:
        raise PolicyError(
            f"The policy server at {line.root} does not serve {wanted!r}, but {', '.join(by_name) or 'nothing'}.",
            "Correct policy.served_model.",
        )
    card = by_name[wanted]
    engine = config.engine if config.engine != "auto" else str(card.get("owned_by"))
    context = card.get("max_model_len")
    wire: Wire = SGLang() if engine == "sglang" else VLLM()
    model = "" if engine == "sglang" else wanted
    return Served(wire, model, context if isinstance(context, int) else None, await _engine(line, engine))


async def _engine(line: Line, name: str) -> str:
    """The server's name and, where it tells, its version: what is stored with each sample."""
    try:
        said = await line.get("/version")
    except PolicyError:
        return name
    version = said.get("version") if isinstance(said, dict) else None
    return f"{name} {version}" if version else name


def _need_address(config: PolicyConfig) -> None:
    if not config.base_url:
        raise PolicyError(
            "policy.kind=server needs the server's address.", "Set policy.base_url=http://HOST:PORT/v1."
        )


def _no_adapters(wire: Wire, error: PolicyError) -> PolicyError:
    fix = (
        "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        if wire.name == "vllm"
        else "Start SGLang with --enable-lora"
    )
    return PolicyError(
        f"The policy server does not load the adapter of a new version: {error.message}",
        f"{fix}, where it sees the run's output_dir under the same path.",
    )


def _no_reload(wire: Wire, path: str, error: PolicyError) -> PolicyError:
    dev = "Start vLLM with VLLM_SERVER_DEV_MODE=1, " if wire.name == "vllm" else "Start SGLang "
    refused = PolicyError(
        f"The policy server does not load the weights in {path}: {error.message}",
        f"{dev}with the model of policy.model, where it sees the run's output_dir under the same path.",
    )
    refused.unknown_route = isinstance(error, Refused) and error.status in (404, 405)  # type: ignore[attr-defined]
    return refused


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own, also where the calling thread has one."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="kpipe-policy-server", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise _plain(failure[0])
    return outcome[0]


def _plain(error: BaseException) -> BaseException:
    """The first error of a task group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def link_served(path: Path, config: PolicyConfig) -> str:
    """Make `path` a directory of links to the files of `config.model`, which the server and the trainer read."""
    _need_address(config)
    source = locate(config.model)

    def build(partial: Path) -> None:
        read_tokenizer(source)
        read_config(source)
        if not list(source.glob("*.safetensors")):
            raise PolicyError(
                f"{source} holds no safetensors weights, which the trainer needs.", "Check policy.model."
            )
        for file in checkpoint_files(source):
            (partial / file.name).symlink_to(file.resolve())

    return ensure_directory(path, str(source), build)
