"""A real HTTP server on the loopback that plays a coder and a policy server, with faults on request.

It keeps every request, so that one can say how often something was paid. Chat answers come from `plan` first,
one per completion, then from `default`; each is an `Answer` of `kpipe.loopback.answers`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from kpipe.loopback.answers import Answer, api_error, completion, spoken
from kpipe.loopback.coder import implement
from kpipe.loopback.completions import Completions, Handler
from kpipe.loopback.faults import HEADER, QUERY, fault, unknown
from kpipe.loopback.quota import Quota

CHARS_PER_TOKEN = 4
BODY_BYTES = 1 << 26
CHAT_PATHS = (
    "/v1/chat/completions",
    "/openai/v1/chat/completions",
    "/openai/deployments/{deployment}/chat/completions",
)


@dataclass
class Loopback:
    """``async with Loopback() as server`` or ``with serving(server)``; `url` is the base URL of the API.

    `key`: None accepts any. `cards`: whether /models is there. `requests`: bodies of all completions asked
    for; `answered`: how many of them were sent an answer with status 200. `policy`: what answers the
    completions of token ids. `faults`: as `kpipe.loopback.faults` names them, for the next requests.
    """

    models: tuple[str, ...] = ("gpt-4o", "gpt-4o-mini")
    key: str | None = None
    cards: bool = True
    default: Answer | None = None
    reply: str | None = None
    policy: Completions | None = None
    quota: Quota = field(default_factory=Quota)
    host: str = "127.0.0.1"
    port: int = 0
    plan: list[Answer] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    """Answers with status 200, by the digest of their request."""
    listed: int = 0
    answered: int = 0
    most_busy: int = 0
    url: str = ""
    _busy: int = 0
    _change: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Loopback:
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES)
        for path in CHAT_PATHS:
            app.router.add_post(path, self._chat)
        for path, handler in (self.policy.routes() if self.policy else {}).items():
            app.router.add_post(path, self._counting(handler))
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/models/{name:.+}", self._card)
        app.router.add_get("/health", self._health)
        app.router.add_get("/loopback", self._counts)
        app.router.add_post("/loopback/faults", self._order_faults)
        app.router.add_post("/loopback/reset", self._reset)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await _body(request)
        model = request.match_info.get("deployment") or str(asked.get("model"))
        if refused := self._enter(request, asked, model):
            return refused
        return await self._deliver(request, asked, self._next(request, asked))

    def _counting(self, handler: Handler) -> Handler:
        """A completion of the policy's, under the same key, quota, faults and counts as the coder's."""

        async def normal(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
            return await handler(request)

        async def counted(request: web.Request) -> web.StreamResponse:
            asked = await _body(request)
            if refused := self._enter(request, asked):
                return refused
            return await self._deliver(request, asked, self._next(request, asked, normal))

        return counted

    def _enter(
        self, request: web.Request, asked: dict[str, Any], model: str | None = None
    ) -> web.Response | None:
        """Write the request down; a refusal when key, model or quota do not allow it."""
        self.headers.append(dict(request.headers))
        self.queries.append(dict(request.query))
        self.paths[request.path] += 1
        if refused := self._refuse(request, model):
            self.statuses[refused.status] += 1
            return refused
        self.requests.append(asked)
        self.times.append(time.monotonic())
        if wait := self.quota.take(_tokens(asked.get("messages"))):
            self.statuses[429] += 1
            headers = {**self.quota.headers(), "Retry-After": f"{wait:.3f}"}
            return api_error(429, "Rate limit reached.", headers=headers, code="rate_limit_exceeded")
        return None

    def _next(self, request: web.Request, asked: dict[str, Any], normal: Answer | None = None) -> Answer:
        """The answer whose turn it is: a fault that was asked for, the plan, the default."""
        usual = self.plan.pop(0) if self.plan else normal or self.default or self._says(asked)
        wish = request.headers.get(HEADER) or request.query.get(QUERY)
        wish = wish or (self.faults.pop(0) if self.faults else None)
        if wish is None:
            return usual
        try:
            return fault(wish, usual)
        except ValueError as error:
            return unknown(error)

    def _says(self, asked: dict[str, Any]) -> Answer:
        """`reply`, or what the built-in coder makes of the request, cut at the length that was asked for."""
        text = implement(asked.get("messages")) if self.reply is None else self.reply
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        longest = limit * CHARS_PER_TOKEN if isinstance(limit, int) else len(text)
        n = asked.get("n") if isinstance(asked.get("n"), int) else 1
        said = completion(
            text[:longest],
            finish="stop" if len(text) <= longest else "length",
            tokens=(_tokens(asked.get("messages")), _tokens(text[:longest]) * (n or 1)),
            model=str(asked.get("model")),
            n=n or 1,
        )
        return spoken(said)

    async def _deliver(
        self, request: web.Request, asked: dict[str, Any], answer: Answer
    ) -> web.StreamResponse:
        async with self._counted():
            response = await answer(request, asked)
        if not response.prepared:
            for name, value in self.quota.headers().items():
                response.headers.setdefault(name, value)
        self.statuses[response.status] += 1
        self.answered += response.status == 200
        self.delivered[_digest(asked)] += response.status == 200
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
        served = self.policy.cards() if self.policy else []
        cards = {"object": "list", "data": [*served, *(_card(name) for name in self.models)]}
        return self._refuse(request) or web.json_response(cards)

    async def _card(self, request: web.Request) -> web.Response:
        if not self.cards:
            return web.json_response({"detail": "Not Found"}, status=404)
        name = request.match_info["name"]
        for card in self.policy.cards() if self.policy else []:
            if card["id"] == name:
                return self._refuse(request) or web.json_response(card)
        return self._refuse(request, name) or web.json_response(_card(name))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _counts(self, _: web.Request) -> web.Response:
        """What has been asked and answered, and how often the same was answered again."""
        counts = {
            "requests": sum(self.paths.values()),
            "answered": self.answered,
            "answered_again": sum(n - 1 for n in self.delivered.values() if n > 1),
            "most_busy": self.most_busy,
            "statuses": {str(code): n for code, n in sorted(self.statuses.items())},
            "paths": dict(self.paths),
            "faults_waiting": len(self.faults),
        }
        return web.json_response(counts)

    async def _order_faults(self, request: web.Request) -> web.Response:
        """POST {"fault": "429:2", "times": 20}: the next so many requests get it."""
        asked = await _body(request)
        name, times = asked.get("fault"), asked.get("times", 1)
        try:
            fault(str(name), spoken({}))
        except ValueError as error:
            return api_error(400, f"Loopback: {error}.")
        if not isinstance(times, int) or not 0 < times <= 1_000_000:
            return api_error(400, f"Loopback: times = {times!r} is no number of requests.")
        self.faults += [str(name)] * times
        return web.json_response({"faults_waiting": len(self.faults)})

    async def _reset(self, request: web.Request) -> web.Response:
        """Forget all counts and the faults that are still to come."""
        for kept in (self.requests, self.times, self.headers, self.queries, self.faults):
            kept.clear()
        for counter in (self.paths, self.statuses, self.delivered):
            counter.clear()
        self.listed = self.answered = self.most_busy = 0
        return web.json_response({})

    def _refuse(self, request: web.Request, model: str | None = None) -> web.Response | None:
        """By the key, in OpenAI's header or in Azure's, and by the model."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        azure = request.path.startswith("/openai/deployments/")
        given = request.headers.get("api-key", "") if azure else given
        if self.key is not None and given != self.key:
            return api_error(401, f"Incorrect API key provided: {given}.", code="invalid_api_key")
        if azure and "api-version" not in request.query:
            return api_error(404, "Resource not found", code="404")
        if model is not None and model not in self.models:
            return api_error(404, f"The model `{model}` does not exist.", code="model_not_found")
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


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        tree = await request.json()
    except ValueError:
        tree = None
    return tree if isinstance(tree, dict) else {}


def _tokens(value: Any) -> int:
    """About how many tokens a text or messages are."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return max(1, len(text) // CHARS_PER_TOKEN)


def _digest(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "loopback"}
