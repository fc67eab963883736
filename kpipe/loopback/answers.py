"""What a chat completions server may send, good and bad: one maker of an `Answer` for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

PIECE_CHARS = 48
"""Of a streamed text, how much goes into one event."""

KERNEL = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""


def code_reply(kernel: str = KERNEL) -> str:
    """A reply as a coder writes it."""
    return f"Done as suggested.\n\n```python\n{kernel}```\nIt runs in one pass.\n"


def completion(
    text: str | None,
    *,
    finish: str = "stop",
    tokens: tuple[int, int] = (100, 50),
    model: str = "gpt-4o",
    n: int = 1,
    **message: Any,
) -> dict[str, Any]:
    """Body of a chat completion; `tokens` of the prompt and of the whole reply."""
    said = {"role": "assistant", "content": text, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": i, "finish_reason": finish, "message": said} for i in range(n)],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }


def says(text: str | None, **kwargs: Any) -> Answer:
    """A reply with this text, whole or streamed, as it is asked for."""
    return spoken(completion(text, **kwargs))


def spoken(reply: dict[str, Any]) -> Answer:
    """This chat completion, whole or streamed."""

    async def answer(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        if asked.get("stream") is not True:
            return web.json_response(reply)
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        return await _stream(request, reply, usage)

    return answer


async def _stream(request: web.Request, reply: dict[str, Any], usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in _events(reply, usage):
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _events(reply: dict[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    """Chunks of a streamed completion; the last one counts tokens, and only where that was asked for."""
    head = {k: reply[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return {**head, "choices": [choice], **({"usage": None} if usage else {})}

    for choice in reply["choices"]:
        message, index = choice["message"], choice["index"]
        yield chunk(index, {"role": "assistant", "content": ""})
        for name in ("content", "refusal"):
            text = message.get(name) or ""
            for start in range(0, len(text), PIECE_CHARS):
                yield chunk(index, {name: text[start : start + PIECE_CHARS]})
        yield chunk(index, {}, choice["finish_reason"])
    if usage:
        yield {**head, "choices": [], "usage": reply["usage"]}


def body(content: dict[str, Any] | str | bytes, *, content_type: str = "application/json") -> Answer:
    """Status 200 with exactly this body."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        text = json.dumps(content) if isinstance(content, dict) else content
        raw = text.encode() if isinstance(text, str) else text
        return web.Response(body=raw, content_type=content_type)

    return answer


def status(
    number: int, /, *, retry_after: str | None = None, message: str = "Try again.", **error: Any
) -> Answer:
    """An error of the API: 429, 500 and the like."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return api_error(number, message, headers=headers, **error)

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
        if request.transport:
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


def api_error(
    number: int, message: str, /, *, headers: dict[str, str] | None = None, **fields: Any
) -> web.Response:
    content = {"error": {"message": message, "type": "error", "param": None, "code": None, **fields}}
    return web.json_response(content, status=number, headers=headers)
