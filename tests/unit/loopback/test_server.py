"""The loopback coder speaks the real protocol: asked by the real client, and by plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from kpipe import problems
from kpipe.coder.base import CoderRequest
from kpipe.coder.builtin import rewrite
from kpipe.coder.messages import ask
from kpipe.config import CoderConfig
from kpipe.domain.extract import extract_kernel
from kpipe.domain.verdict import Outcome
from kpipe.loopback.answers import KERNEL, code_reply
from kpipe.loopback.faults import HEADER
from kpipe.loopback.quota import Quota, duration
from kpipe.loopback.server import Loopback

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def server() -> AsyncIterator[Loopback]:
    async with Loopback(key="k") as running:
        yield running


@pytest.fixture
async def client(server: Loopback) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as made:
        yield made


async def control(server: Loopback, path: str = "", **tree: Any) -> tuple[int, dict[str, Any]]:
    url = server.url.removesuffix("/v1") + "/loopback" + path
    async with (
        aiohttp.ClientSession() as session,
        session.request("POST" if path else "GET", url, json=tree) as response,
    ):
        return response.status, await response.json()


async def test_a_whole_reply(client: openai.AsyncOpenAI) -> None:
    said = await client.chat.completions.create(model="gpt-4o", messages=HELLO, n=2)
    assert [c.message.content for c in said.choices] == [code_reply()] * 2
    assert said.usage
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens > 0


async def test_a_streamed_reply_with_its_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="gpt-4o", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == code_reply()
    assert len(chunks) > 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_a_reply_ends_at_the_length_that_was_asked_for(client: openai.AsyncOpenAI) -> None:
    said = await client.chat.completions.create(model="gpt-4o", messages=HELLO, max_tokens=3)
    assert said.choices[0].finish_reason == "length"
    assert said.choices[0].message.content == code_reply()[:12]


@pytest.mark.parametrize("failed", [None, Outcome.WRONG_VALUE])
async def test_the_builtin_coder_answers_requests_of_our_own(
    failed: Outcome | None, client: openai.AsyncOpenAI
) -> None:
    problem = next(p for p in problems.builtin() if p.name == "gelu")
    first = rewrite(CoderRequest(problem, problem.source, "Use SIMD vector instructions."))
    request = CoderRequest(problem, first, "Unroll the inner loop.", failed, "off by one")
    messages: Any = ask(request, CoderConfig(), base_url="", device="cpu").messages
    said = await client.chat.completions.create(model="gpt-4o", messages=messages)
    assert extract_kernel(said.choices[0].message.content or "") == rewrite(request)
    assert first != problem.source


async def test_a_given_text(server: Loopback, client: openai.AsyncOpenAI) -> None:
    server.reply = "No."
    said = await client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert said.choices[0].message.content == "No."


async def test_models_and_keys(server: Loopback, client: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in client.models.list()] == ["gpt-4o", "gpt-4o-mini"]
    assert (await client.models.retrieve("gpt-4o")).id == "gpt-4o"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-4p", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="other").chat.completions.create(model="gpt-4o", messages=HELLO)


async def test_an_azure_client(server: Loopback) -> None:
    base = server.url.removesuffix("/v1")
    async with openai.AsyncAzureOpenAI(azure_endpoint=base, api_key="k", api_version="2024-10-21") as client:
        said = await client.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert said.choices[0].message.content == code_reply()
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="x").chat.completions.create(model="gpt-4o", messages=HELLO)


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ("429:2", openai.RateLimitError),
        ("500", openai.InternalServerError),
        ("cut", openai.APIConnectionError),
    ],
)
async def test_faults_by_header_and_by_query(
    wish: str, error: type[Exception], client: openai.AsyncOpenAI
) -> None:
    for extra in ({"extra_headers": {HEADER: wish}}, {"extra_query": {"fault": wish}}):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(model="gpt-4o", messages=HELLO, **extra)  # type: ignore[call-overload]
        if isinstance(caught.value, openai.RateLimitError):
            assert caught.value.response.headers["retry-after"] == "2"
    await client.chat.completions.create(model="gpt-4o", messages=HELLO)


async def test_every_named_fault_is_served(server: Loopback, client: openai.AsyncOpenAI) -> None:
    async def raw(wish: str) -> tuple[int, str]:
        create: Any = client.chat.completions.with_raw_response.create
        answer = await create(model="gpt-4o", messages=HELLO, extra_headers={HEADER: wish})
        return answer.status_code, answer.text

    assert await raw("malformed") == (200, '{"choices": [{"mess')
    assert await raw("blank") == (200, "")
    assert '"choices": []' in (await raw("empty"))[1]
    assert '"refusal": "I cannot' in (await raw("refusal"))[1]
    assert '"finish_reason": "content_filter"' in (await raw("filtered"))[1]
    assert '"finish_reason": "length"' in (await raw("length"))[1]
    assert "weather" in (await raw("no-code"))[1]
    assert len((await raw("huge:3000000"))[1]) > 3_000_000
    assert "ModelNew" in (await raw("slow:0.01"))[1]
    with pytest.raises(openai.BadRequestError, match="no fault 'sulk'"):
        await raw("sulk")


async def test_faults_and_counts_by_the_control_endpoint(
    server: Loopback, client: openai.AsyncOpenAI
) -> None:
    assert await control(server, "/faults", fault="503", times=2) == (200, {"faults_waiting": 2})
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="gpt-4o", messages=HELLO)
    for _ in range(2):
        await client.chat.completions.create(model="gpt-4o", messages=HELLO)
    _, counts = await control(server)
    assert counts["statuses"] == {"200": 2, "503": 2}
    assert (counts["requests"], counts["answered"], counts["answered_again"]) == (4, 2, 1)
    assert (await control(server, "/faults", fault="sulk"))[0] == 400
    assert (await control(server, "/faults", fault="500", times=0))[0] == 400
    await control(server, "/reset")
    assert (await control(server))[1]["requests"] == 0


async def test_a_quota_is_told_and_kept(server: Loopback, client: openai.AsyncOpenAI) -> None:
    now = [100.0]
    server.quota = Quota(2, 1000, clock=lambda: now[0])
    create: Any = client.chat.completions.with_raw_response.create
    first = (await create(model="gpt-4o", messages=HELLO)).headers
    assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert first["x-ratelimit-reset-requests"] == "30s"
    await create(model="gpt-4o", messages=HELLO)
    with pytest.raises(openai.RateLimitError) as caught:
        await create(model="gpt-4o", messages=HELLO)
    assert float(caught.value.response.headers["retry-after"]) == 30
    now[0] += 30
    await create(model="gpt-4o", messages=HELLO)


def test_durations_are_written_as_openai_writes_them() -> None:
    assert [duration(s) for s in (0.006, 1.5, 59.0, 360.0, 61.5)] == ["6ms", "1.5s", "59s", "6m0s", "1m1.5s"]


def test_the_fixed_kernel_is_one() -> None:
    assert extract_kernel(code_reply()) == KERNEL
