"""Replies that are cut off are continued, and put together as one."""

from __future__ import annotations

import pytest
from unit.coder.asking import MakeCoder, request

from kpipe.coder.conversation import worst_tokens
from kpipe.domain.extract import ends_in_code, extract_kernel, join_cut
from kpipe.loopback.answers import KERNEL, code_reply, says
from kpipe.loopback.server import Loopback

WHOLE = code_reply()


@pytest.mark.parametrize("cut", range(1, len(WHOLE), 7))
def test_a_reply_is_put_together_wherever_it_was_cut(cut: int) -> None:
    assert extract_kernel(join_cut(WHOLE[:cut], WHOLE[cut:])) == KERNEL


CUT = WHOLE.index("+ 1")


@pytest.mark.parametrize(
    "rest",
    [
        WHOLE[CUT:],
        f"```python\n{WHOLE[CUT:]}",
        WHOLE[WHOLE.index("        return") :],
        WHOLE,
        f"Here is the whole module again:\n\n{WHOLE}",
    ],
    ids=["exactly", "a new fence", "the last line again", "all again", "all again with words"],
)
def test_the_ways_in_which_models_go_on(rest: str) -> None:
    assert extract_kernel(join_cut(WHOLE[:CUT], rest)) == KERNEL


def test_where_a_reply_ends() -> None:
    assert ends_in_code(WHOLE[:CUT])
    assert ends_in_code("import torch")
    assert not ends_in_code(WHOLE)


async def test_a_cut_reply_is_continued(server: Loopback, coder_for: MakeCoder) -> None:
    parts = WHOLE[:40], WHOLE[40:CUT], WHOLE[CUT:]
    server.plan = [says(t, finish=f) for t, f in zip(parts, ("length", "length", "stop"), strict=True)]
    reply = await coder_for(continuations=2).implement(request())
    assert reply.kernel == KERNEL
    assert reply.call
    assert (reply.call.reply, reply.call.attempts, reply.call.tokens_out) == (WHOLE, 3, 150)
    assert [m["role"] for m in server.requests[2]["messages"]] == ["system", "user", "assistant", "user"]
    assert server.requests[2]["messages"][2]["content"] == parts[0] + parts[1]


async def test_it_is_continued_only_so_often(server: Loopback, coder_for: MakeCoder) -> None:
    server.default = says(WHOLE[:CUT], finish="length")
    reply = await coder_for(continuations=1).implement(request())
    assert reply.kernel is None
    assert "cut off at coder.max_tokens" in str(reply.error)
    assert len(server.requests) == 2


async def test_all_of_it_spent_on_thoughts_is_not_continued(server: Loopback, coder_for: MakeCoder) -> None:
    server.default = says("", finish="length")
    assert (await coder_for(continuations=3).implement(request())).kernel is None
    assert len(server.requests) == 1


async def test_code_that_is_whole_needs_no_last_words(server: Loopback, coder_for: MakeCoder) -> None:
    server.default = says(WHOLE, finish="length")
    assert (await coder_for(continuations=3).implement(request())).kernel == KERNEL
    assert len(server.requests) == 1


async def test_a_conversation_never_costs_more_than_its_worst_case(
    server: Loopback, coder_for: MakeCoder
) -> None:
    """The longest one there is, its tokens counted as generously as any tokenizer could: one per byte."""
    limit = 60
    server.default = says("x" * limit, finish="length")
    coder = coder_for(continuations=2, max_tokens=limit)
    server.plan = [says("y" * limit, finish=f) for f in ("length", "length", "stop")]
    await coder.implement(request())
    assert len(server.requests) == 6
    sent = [sum(len(m["content"].encode()) for m in r["messages"]) for r in server.requests]
    prompts, replies = worst_tokens(server.requests[0]["messages"], limit, 2)
    assert sum(sent) <= prompts < 2 * sum(sent)
    assert replies == 6 * limit


async def test_cached_prompt_tokens_have_their_own_price(server: Loopback, coder_for: MakeCoder) -> None:
    from kpipe.loopback.answers import completion, spoken

    body = completion(WHOLE, tokens=(1_000_000, 0))
    body["usage"]["prompt_tokens_details"] = {"cached_tokens": 400_000}
    server.default = spoken(body)
    prices = {"usd_per_million_in": 2.0, "usd_per_million_cached": 0.5}
    reply = await coder_for(**prices).implement(request())
    assert reply.call
    assert reply.call.usd == pytest.approx(0.6 * 2.0 + 0.4 * 0.5)
