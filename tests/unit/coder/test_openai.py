"""What is asked, what comes back, and that nothing is paid twice."""

from __future__ import annotations

import asyncio
import json

import pytest
from unit.coder.asking import KEY, PROBLEM, REFERENCE, MakeCoder, request

from kpipe.coder import open_coder
from kpipe.coder.base import CoderRequest
from kpipe.coder.openai import OpenAICoder
from kpipe.config import CoderConfig
from kpipe.domain.verdict import Outcome
from kpipe.loopback.answers import KERNEL, body, code_reply, completion, held, says, status
from kpipe.loopback.server import Loopback
from kpipe.store import blobs, ledger, rollouts
from kpipe.store.database import Database
from kpipe.store.records import CoderCall

OTHER = KERNEL.replace("x + 1", "1 + x")


async def test_a_suggestion_becomes_a_kernel_and_a_row_of_the_ledger(
    server: Loopback, coder_for: MakeCoder
) -> None:
    server.plan = [says(code_reply(), tokens=(2000, 300))]
    reply = await coder_for(usd_per_million_in=2.5, usd_per_million_out=10.0).implement(request())
    assert (reply.kernel, reply.error) == (KERNEL, None)
    call = reply.call
    assert call is not None
    assert (call.model, call.reply, call.error) == ("gpt-4o", code_reply(), None)
    assert (call.tokens_in, call.tokens_out, call.attempts) == (2000, 300, 1)
    assert call.usd == pytest.approx(0.008)
    assert call.seconds > 0
    asked = json.loads(call.request)
    (sent,) = server.requests
    assert sent["messages"] == asked["messages"]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("gpt-4o", 0.0, 8192)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def words_of(server: Loopback) -> str:
    system, user = server.requests[-1]["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert "ModelNew" in system["content"]
    assert "CPU" in system["content"]
    return str(user["content"])


async def test_the_first_message_starts_from_the_reference(server: Loopback, coder_for: MakeCoder) -> None:
    await coder_for().implement(request("Fuse both loops."))
    words = words_of(server)
    for part in ("plus_one", REFERENCE.strip(), "Fuse both loops.", "no kernel yet"):
        assert part in words
    assert words.count("class Model(") == 1


async def test_a_failed_kernel_is_shown_with_what_was_seen(server: Loopback, coder_for: MakeCoder) -> None:
    failed = request(kernel=KERNEL, outcome=Outcome.COMPILE_ERROR, evidence="main.cpp:3: error: expected ';'")
    await coder_for().implement(failed)
    words = words_of(server)
    for part in (KERNEL.strip(), "compile error", "expected ';'"):
        assert part in words


@pytest.mark.parametrize("outcome", [None, Outcome.CORRECT, Outcome.UNCHANGED])
async def test_a_kernel_that_works_is_shown_alone(
    outcome: Outcome | None, server: Loopback, coder_for: MakeCoder
) -> None:
    await coder_for().implement(request(kernel=KERNEL, outcome=outcome, evidence="some log"))
    words = words_of(server)
    assert KERNEL.strip() in words
    assert "fails" not in words
    assert "some log" not in words


async def test_of_long_evidence_beginning_and_end_are_shown(server: Loopback, coder_for: MakeCoder) -> None:
    log = "\n".join(["first error", *["note: of no use"] * 10_000, "last line"])
    await coder_for().implement(request(kernel=KERNEL, outcome=Outcome.CRASH, evidence=log))
    words = words_of(server)
    assert "first error" in words
    assert "last line" in words
    assert len(words) < 10_000


async def test_what_is_filled_in_is_not_read_again(server: Loopback, coder_for: MakeCoder) -> None:
    """A kernel may hold dollar signs and names of placeholders."""
    kernel = KERNEL.replace("x + 1", "x + 1  # $suggestion ${target} $1 $$")
    await coder_for().implement(request("Cost: $5 \udc80 $reference", kernel=kernel))
    words = words_of(server)
    assert "$suggestion ${target} $1 $$" in words
    assert "Cost: $5 ? $reference" in words


async def test_an_address_with_a_query(server: Loopback, coder_for: MakeCoder) -> None:
    await coder_for(base_url=f"{server.url}/?api-version=2024-10-21").implement(request())
    assert server.queries == [{"api-version": "2024-10-21"}]


async def test_content_in_parts(server: Loopback, coder_for: MakeCoder) -> None:
    parts = [{"type": "text", "text": code_reply()[:30]}, {"type": "text", "text": code_reply()[30:]}]
    server.plan = [body(completion(None) | {"choices": [{"message": {"content": parts}}]})]
    assert (await coder_for().implement(request())).kernel == KERNEL


async def test_a_server_that_counts_no_tokens(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [body(completion(code_reply()) | {"usage": None})]
    reply = await coder_for().implement(request())
    assert reply.kernel == KERNEL
    assert reply.call
    assert (reply.call.tokens_in, reply.call.usd) == (0, 0.0)


async def test_an_answer_is_bought_once_for_ever(
    server: Loopback, coder_for: MakeCoder, database: Database
) -> None:
    """Through the real store, as another process would find it."""

    async def lookup(key: str) -> CoderCall | None:
        return await database.aread(rollouts.cached_call, key)

    def keep(conn: object, call: CoderCall) -> None:
        addresses = {text: blobs.put(conn, text) for text in ledger.texts(call)}  # type: ignore[arg-type]
        ledger.record(conn, call, addresses)  # type: ignore[arg-type]

    server.plan = [status(400), says(code_reply())]
    failed = await coder_for(lookup).implement(request())
    assert failed.kernel is None
    assert failed.call
    await database.awrite(keep, failed.call)
    bought = await coder_for(lookup).implement(request())
    assert bought.call
    await database.awrite(keep, bought.call)
    again = await coder_for(lookup).implement(request())
    assert again.kernel == bought.kernel == KERNEL
    assert again.call
    assert again.call.key == bought.call.key
    assert again.call.attempts == failed.call.attempts + bought.call.attempts
    assert len(server.requests) == 2


async def test_a_stored_failure_is_no_answer(server: Loopback, coder_for: MakeCoder) -> None:
    async def lookup(key: str) -> CoderCall | None:
        return CoderCall(key, "gpt-4o", "{}", code_reply(OTHER), "cut off", 1, 1, 0.1, 1.0, 1)

    assert (await coder_for(lookup).implement(request())).kernel == KERNEL
    assert len(server.requests) == 1


async def test_the_key_is_all_that_determines_the_answer(server: Loopback, coder_for: MakeCoder) -> None:
    server.models = ("gpt-4o", "gpt-4o-mini")

    async def key(asked: CoderRequest, **settings: object) -> str:
        reply = await coder_for(**settings).implement(asked)
        assert reply.call
        return reply.call.key

    base = await key(request())
    assert await key(request(), concurrency=3, timeout_s=5.0, max_retries=0, usd_per_million_in=9.0) == base
    different = [
        await key(request("Another one.")),
        await key(request(kernel=KERNEL)),
        await key(request(kernel=KERNEL, outcome=Outcome.CRASH, evidence="a")),
        await key(request(kernel=KERNEL, outcome=Outcome.CRASH, evidence="b")),
        await key(request(), model="gpt-4o-mini"),
        await key(request(), temperature=0.5),
        await key(request(), max_tokens=100),
    ]
    assert len({base, *different}) == 1 + len(different)


async def test_equal_requests_in_flight_are_one(server: Loopback, coder_for: MakeCoder) -> None:
    ready = asyncio.Event()
    server.plan = [held(ready, says(code_reply()))]
    coder = coder_for()
    first, second = (asyncio.create_task(coder.implement(request())) for _ in range(2))
    other = asyncio.create_task(coder.implement(request("Another one.")))
    assert (await other).kernel == KERNEL
    ready.set()
    assert (await first).call == (await second).call
    assert len(server.requests) == 2


async def test_an_answer_is_known_before_it_is_stored(server: Loopback, coder_for: MakeCoder) -> None:
    coder = coder_for()
    first = await coder.implement(request())
    assert await coder.implement(request()) == first
    assert len(server.requests) == 1


async def test_who_gives_up_waiting_does_not_waste_the_answer(server: Loopback, coder_for: MakeCoder) -> None:
    ready = asyncio.Event()
    server.plan = [held(ready, says(code_reply()))]
    coder = coder_for()
    leaving, staying = (asyncio.create_task(coder.implement(request())) for _ in range(2))
    await server.until_busy(1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    ready.set()
    assert (await staying).kernel == KERNEL
    assert len(server.requests) == 1


async def test_a_shared_failure_is_billed_once_and_not_remembered(
    server: Loopback, coder_for: MakeCoder
) -> None:
    server.plan = [says("No."), says("Still no."), says(code_reply())]
    coder = coder_for()
    replies = await asyncio.gather(coder.implement(request()), coder.implement(request()))
    assert [r.kernel for r in replies] == [None, None]
    assert replies[0].error == replies[1].error
    assert [r.call is None for r in replies].count(True) == 1
    assert (await coder.implement(request())).kernel == KERNEL


async def test_no_more_than_so_many_at_once(server: Loopback, coder_for: MakeCoder) -> None:
    coder, ready = coder_for(concurrency=3), asyncio.Event()
    server.default = held(ready, says(code_reply()))
    tasks = [asyncio.create_task(coder.implement(request(f"Number {i}."))) for i in range(8)]
    await server.until_busy(3)
    ready.set()
    assert all(r.kernel == KERNEL for r in await asyncio.gather(*tasks))
    assert server.most_busy == 3
    assert len(server.requests) == 8


async def test_one_reminder_when_there_is_no_code(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [says("I would tile it.", tokens=(10, 5)), says(code_reply(OTHER), tokens=(30, 20))]
    reply = await coder_for().implement(request())
    assert reply.kernel == OTHER
    assert reply.call
    assert (reply.call.tokens_in, reply.call.tokens_out, reply.call.attempts) == (40, 25, 2)
    assert reply.call.reply == code_reply(OTHER)
    first, second = (r["messages"] for r in server.requests)
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": "I would tile it."}
    assert second[3]["role"] == "user"
    assert "ModelNew" in second[3]["content"]


async def test_after_the_reminder_it_is_a_failure(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [says(None, tokens=(10, 5)), says("Never.", tokens=(30, 20))]
    reply = await coder_for().implement(request())
    assert reply.kernel is None
    assert "no code in two replies" in str(reply.error)
    assert "Never." in str(reply.error)
    assert reply.call
    assert (reply.call.reply, reply.call.error) == (None, reply.error)
    assert (reply.call.tokens_in, reply.call.tokens_out) == (40, 25)
    assert [m["role"] for m in server.requests[1]["messages"]] == ["system", "user", "user"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(code_reply()[:60], finish="length"), "cut off"),
        (says(None, refusal="I cannot help with that."), "refused: I cannot help"),
        (says(None, finish="content_filter"), "refused"),
    ],
    ids=["truncated", "refusal", "filter"],
)
async def test_what_a_reminder_does_not_mend(
    answer: object, words: str, server: Loopback, coder_for: MakeCoder
) -> None:
    server.plan = [answer]  # type: ignore[list-item]
    reply = await coder_for(continuations=0).implement(request())
    assert reply.kernel is None
    assert words in str(reply.error)
    assert reply.call
    assert reply.call.tokens_out == 50
    assert len(server.requests) == 1


async def test_it_is_opened_by_its_kind(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def nothing(_: str) -> None:
        return None

    coder = open_coder(CoderConfig(kind="openai", base_url=server.url), nothing)
    assert isinstance(coder, OpenAICoder)
    assert coder.supports(PROBLEM) is None
    assert (await coder.implement(request())).kernel == KERNEL
    await coder.close()


async def test_closing_stops_what_is_on_its_way(server: Loopback, coder_for: MakeCoder) -> None:
    server.default = held(asyncio.Event(), says(code_reply()))
    coder = coder_for()
    waiting = asyncio.create_task(coder.implement(request()))
    await server.until_busy(1)
    await coder.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
