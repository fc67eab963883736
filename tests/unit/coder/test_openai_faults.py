"""A server that misbehaves: what is tried again, what is not, and that no key ever shows."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from unit.coder.asking import KEY, MakeCoder, request

from kpipe.coder.completion import Reply, read_completion, retry_after, wait_s
from kpipe.coder.endpoint import find_endpoint
from kpipe.config import CoderConfig
from kpipe.errors import CoderError
from kpipe.loopback.answers import KERNEL, Answer, body, code_reply, completion, cut, huge, says, slow, status
from kpipe.loopback.server import Loopback

TRANSIENT: dict[str, Answer] = {
    **{str(code): status(code) for code in (408, 409, 429, 500, 502, 503, 504)},
    "retry after": status(429, retry_after="0.01"),
    "no connection": cut(),
    "cut off": cut(b'{"choices": [{"message"'),
    "malformed": body('{"choices": [{"mess'),
    "empty": body(b""),
    "not utf-8": body(b"\xff\xfe"),
    "a list": body("[]"),
    "nested": body("[" * 100_000),
    "html": body("<html>502 Bad Gateway</html>", content_type="text/html"),
    "no choices": body(completion("") | {"choices": []}),
    "null choices": body('{"choices": null}'),
    "error inside": body({"error": {"message": "overloaded", "code": 503}}),
}


@pytest.mark.parametrize("answer", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_what_passes_is_tried_again(answer: Answer, server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [answer, answer, says(code_reply())]
    reply = await coder_for(max_retries=2).implement(request())
    assert (reply.kernel, reply.error) == (KERNEL, None)
    assert reply.call
    assert (reply.call.attempts, reply.call.error) == (3, None)
    assert len(server.requests) == 3


@pytest.mark.parametrize("answer", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_what_stays_is_a_failure_of_this_request(
    answer: Answer, server: Loopback, coder_for: MakeCoder
) -> None:
    server.default = answer
    reply = await coder_for(max_retries=1).implement(request())
    assert reply.kernel is None
    assert reply.error
    assert reply.call
    assert (reply.call.attempts, reply.call.reply, reply.call.error) == (2, None, reply.error)


@pytest.mark.parametrize("code", [400, 402, 403, 413, 422])
async def test_what_will_not_change_is_not_tried_again(
    code: int, server: Loopback, coder_for: MakeCoder
) -> None:
    server.plan = [status(code, message="This model's maximum context length is 8192 tokens.")]
    reply = await coder_for().implement(request())
    assert reply.kernel is None
    assert "maximum context length" in str(reply.error)
    assert len(server.requests) == 1


async def test_what_a_wasted_attempt_cost_is_counted(server: Loopback, coder_for: MakeCoder) -> None:
    wasted = completion("", tokens=(7, 3)) | {"choices": []}
    server.plan = [body(wasted), says(code_reply(), tokens=(7, 40))]
    reply = await coder_for().implement(request())
    assert reply.call
    assert (reply.call.tokens_in, reply.call.tokens_out) == (14, 43)


async def test_a_server_that_asks_to_wait_is_obeyed(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [status(429, retry_after="0.3"), says(code_reply())]
    assert (await coder_for().implement(request())).kernel == KERNEL
    assert server.times[1] - server.times[0] >= 0.3


async def test_a_wait_beyond_the_deadline_is_not_begun(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [status(429, retry_after="86400")]
    reply = await coder_for(timeout_s=250.0).implement(request())
    assert "past coder.timeout_s" in str(reply.error)
    assert len(server.requests) == 1


async def test_the_deadline_holds_for_all_attempts(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [status(500, message="Worker died."), slow(600, says(code_reply()))]
    reply = await coder_for(timeout_s=0.5).implement(request())
    assert reply.kernel is None
    assert "no answer within 0.5 s" in str(reply.error)
    assert "Worker died." in str(reply.error)
    assert reply.call
    assert reply.call.attempts == 2


async def test_an_endless_answer_is_not_read_to_its_end(server: Loopback, coder_for: MakeCoder) -> None:
    server.plan = [huge(1 << 40)]
    reply = await coder_for(max_tokens=100).implement(request())
    assert "longer than coder.max_tokens" in str(reply.error)
    assert len(server.requests) == 1


async def test_a_long_answer_is_read(server: Loopback, coder_for: MakeCoder) -> None:
    kernel = KERNEL + "# a line\n" * 40_000
    server.plan = [says(code_reply(kernel))]
    assert (await coder_for().implement(request())).kernel == kernel


async def test_newer_models_call_the_length_limit_by_another_name(
    server: Loopback, coder_for: MakeCoder
) -> None:
    server.plan = [
        status(400, param="max_tokens", code="unsupported_parameter"),
        status(400, param="temperature", code="unsupported_value"),
    ]
    coder = coder_for(max_retries=0, max_tokens=77)
    assert (await coder.implement(request())).kernel == KERNEL
    assert (await coder.implement(request("Another one."))).kernel == KERNEL
    limits = [{k: r[k] for k in r if k not in ("model", "messages")} for r in server.requests]
    assert limits == [
        {"temperature": 0.0, "max_tokens": 77},
        {"temperature": 0.0, "max_completion_tokens": 77},
        {"max_completion_tokens": 77},
        {"max_completion_tokens": 77},
    ]


async def test_a_parameter_that_stays_unsupported_is_a_failure(
    server: Loopback, coder_for: MakeCoder
) -> None:
    server.default = status(400, param="messages", code="unsupported_value", message="No.")
    assert "No." in str((await coder_for().implement(request())).error)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(401, message=f"Incorrect API key provided: {KEY}."), "refuses the API key"),
        (status(429, code="insufficient_quota"), "no credit left"),
        (status(404, code="model_not_found"), "no model 'gpt-4o'"),
        (status(404), "/v1"),
    ],
)
async def test_what_no_request_survives_stops_everything(
    answer: Answer, words: str, server: Loopback, coder_for: MakeCoder
) -> None:
    server.default = answer
    with pytest.raises(CoderError) as caught:
        await coder_for().implement(request())
    assert words in str(caught.value)
    assert caught.value.fix
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_no_key_in_logs_errors_or_the_ledger(
    answer: Answer, server: Loopback, coder_for: MakeCoder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "query-secret-987"
    echo = f"You sent {KEY} and {secret}, and sk-another-key-of-yours"
    server.plan = [
        status(500, message=echo),
        body(f"<html>{echo}</html>"),
        body({"error": {"message": echo}}),
        answer,
        status(400, message=echo),
    ]
    coder = coder_for(base_url=f"{server.url}?api-version={secret}", max_retries=4)
    reply = await coder.implement(request())
    assert reply.kernel is None
    said = "\n".join(
        [repr(reply), repr(coder), *(record.getMessage() for record in caplog.records), caplog.text]
    )
    assert "gpt-4o" in said
    for private in (KEY, secret, "sk-another"):
        assert private not in said
        assert private not in json.dumps(str(reply.call))


def test_an_endpoint_does_not_show_its_key() -> None:
    endpoint = find_endpoint(
        CoderConfig(base_url="https://host/v1?api-version=abcdef"), {"OPENAI_API_KEY": KEY}
    )
    assert endpoint.key == KEY
    assert KEY not in repr(endpoint)
    assert "abcdef" not in repr(endpoint)
    assert endpoint.url == "https://host/v1"
    assert endpoint.scrub(f"a\n {KEY}" + "x" * 1000).startswith("a [secret]x")
    assert len(endpoint.scrub("x" * 1000)) < 400


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=7), usegmt=True)}, 7.0),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=7), usegmt=True)}, 0.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def test_waits_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert all(5.0 <= wait_s(0, 5.0) <= 6.25 for _ in range(50))
    own = [[wait_s(failures, None) for _ in range(50)] for failures in range(12)]
    assert all(min(later) >= min(earlier) * 0.9 for earlier, later in pairwise(own))
    assert max(own[0]) < min(own[3])
    assert max(own[-1]) <= 20
    assert len(set(own[0])) > 1


@pytest.mark.parametrize(
    "tree", [None, 1, "x", [], {"choices": [None]}, {"choices": [{"message": 3}]}, {"usage": 3}]
)
def test_any_json_is_read(tree: object) -> None:
    reply = Reply()
    read_completion(json.dumps(tree).encode(), reply)
    assert (reply.text, reply.tokens_in) == ("", 0)
