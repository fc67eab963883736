"""A real HTTP server on the loopback that speaks the chat completions API, with faults on request.

It keeps every request, so a test can say how often something was paid. Answers come from `plan` first, one
per completion, then from `default`; each is an `Answer`, made by the functions at the end.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

KERNEL = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""


def code_reply(kernel: str = KERNEL) -> str:
    """A reply as a coder writes it."""
    return f"Done as suggested.\n\n```python\n{kernel}```\nIt runs in one pass.\n"


@dataclass
class Loopback:
    """``async with Loopback() as server`` or ``with serving(server)``; `url` is the base URL of the API.

    `key`: None accepts any. `cards`: whether /models is there. `requests`: bodies of all completions asked
    for; `answered`: how many of them were sent an answer with status 200.
    """

    models: tuple[str, ...] = ("gpt-4o", "gpt-4o-mini")
    key: str | None = None
    cards: bool = True
    default: Answer | None = None
    plan: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    listed: int = 0
    answered: int = 0
    most_busy: int = 0
    url: str = ""
    _busy: int = 0
    _change: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Loopback:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._completions)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/models/{name:.+}", self._card)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner
        await self._runner.cleanup()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.headers.append(dict(request.headers))
        self.queries.append(dict(request.query))
        if refused := self._refuse(request, str(asked.get("model"))):
            return refused
        self.requests.append(asked)
        self.times.append(time.monotonic())
        answer = self.plan.pop(0) if self.plan else self.default or says(code_reply())
        async with self._counted():
            response = await answer(request, asked)
        self.answered += response.status == 200
        return response

    async def until_busy(self, count: int) -> None:
        """Wait until so many completions are being answered at once."""
        async with self._change:
            await self._change.wait_for(lambda: self._busy >= count)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        await self._count(1)
        try:
            yield
        finally:
            await self._count(-1)

    async def _count(self, change: int) -> None:
        async with self._change:
            self._busy += change
            self.most_busy = max(self.most_busy, self._busy)
            self._change.notify_all()

    async def _list(self, request: web.Request) -> web.Response:
        self.listed += 1
        if not self.cards:
            return web.json_response({"detail": "Not Found"}, status=404)
        cards = {"object": "list", "data": [_card(name) for name in self.models]}
        return self._refuse(request) or web.json_response(cards)

    async def _card(self, request: web.Request) -> web.Response:
        if not self.cards:
            return web.json_response({"detail": "Not Found"}, status=404)
        name = request.match_info["name"]
        return self._refuse(request, name) or web.json_response(_card(name))

    def _refuse(self, request: web.Request, model: str | None = None) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return _error(401, f"Incorrect API key provided: {given}.", code="invalid_api_key")
        if model is not None and model not in self.models:
            return _error(404, f"The model `{model}` does not exist.", code="model_not_found")
        return None


@contextmanager
def serving(server: Loopback) -> Iterator[Loopback]:
    """Serve from a thread of its own: for tests that are not async, or whose clients are other processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def completion(
    text: str | None, *, finish: str = "stop", tokens: tuple[int, int] = (100, 50), **message: Any
) -> dict[str, Any]:
    """Body of a chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }


def says(text: str | None, **kwargs: Any) -> Answer:
    """A reply with this text, and the headers of a rate limit that is far away."""
    return body(completion(text, **kwargs))


def body(content: dict[str, Any] | str | bytes, *, content_type: str = "application/json") -> Answer:
    """Status 200 with exactly this body."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        text = json.dumps(content) if isinstance(content, dict) else content
        raw = text.encode() if isinstance(text, str) else text
        return web.Response(body=raw, content_type=content_type, headers=_limits(remaining=99))

    return answer


def status(
    number: int, /, *, retry_after: str | None = None, message: str = "Try again.", **error: Any
) -> Answer:
    """An error of the API: 429, 500 and the like."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        headers = _limits(remaining=0) if number == 429 else {}
        if retry_after is not None:
            headers["Retry-After"] = retry_after
        return _error(number, message, headers=headers, **error)

    return answer


def slow(seconds: float, then: Answer) -> Answer:
    async def answer(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request, asked)

    return answer


def held(until: asyncio.Event, then: Answer) -> Answer:
    """Answer when the test says so."""

    async def answer(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        await until.wait()
        return await then(request, asked)

    return answer


def cut(after: bytes | None = None) -> Answer:
    """Close the connection without an answer, or after the beginning of one."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Length": "100000", "Content-Type": "application/json"}
        )
        if after is not None:
            await response.prepare(request)
            await response.write(after)
        assert request.transport
        request.transport.abort()
        return response

    return answer


def huge(size: int) -> Answer:
    """An endless answer, sent in pieces until the client hangs up or `size` bytes are out."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"choices": [{"message": {"content": "')
        piece = b"x" * (1 << 20)
        for _sent in range(0, size, len(piece)):
            await response.write(piece)
        await response.write(b'"}}]}')
        return response

    return answer


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "loopback"}


def _limits(*, remaining: int) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": "600ms",
        "x-ratelimit-limit-tokens": "100000",
        "x-ratelimit-remaining-tokens": str(remaining * 1000),
        "x-ratelimit-reset-tokens": "600ms",
    }


def _error(
    number: int, message: str, /, *, headers: dict[str, str] | None = None, **fields: Any
) -> web.Response:
    content = {"error": {"message": message, "type": "error", "param": None, "code": None, **fields}}
    return web.json_response(content, status=number, headers=headers)
