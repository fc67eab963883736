"""What is refused before anything is opened or paid."""

from __future__ import annotations

import logging
import socket

import pytest
from unit.coder.asking import KEY, MakeCoder, request

from kpipe.coder.endpoint import NO_KEY, find_endpoint
from kpipe.config import CoderConfig
from kpipe.errors import CoderError
from kpipe.loopback.answers import Answer, body, cut, status
from kpipe.loopback.server import Loopback

REMOTE = "https://api.example.com/v1"


async def refused(coder_for: MakeCoder, **settings: object) -> str:
    with pytest.raises(CoderError) as caught:
        await coder_for(**{"timeout_s": 20.0, **settings}).check()
    assert caught.value.fix
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_a_model_with_a_card_costs_nothing(server: Loopback, coder_for: MakeCoder) -> None:
    await coder_for().check()
    assert server.requests == []


async def test_a_model_name_with_a_slash(server: Loopback, coder_for: MakeCoder) -> None:
    server.models = ("Qwen/Qwen2.5-Coder",)
    await coder_for(model="Qwen/Qwen2.5-Coder").check()


async def test_without_cards_one_token_decides(server: Loopback, coder_for: MakeCoder) -> None:
    server.cards = False
    await coder_for().check()
    (asked,) = server.requests
    assert asked["max_tokens"] == 1


async def test_a_model_that_likes_no_single_token_is_there(server: Loopback, coder_for: MakeCoder) -> None:
    server.cards = False
    for code in (400, 429):
        server.default = status(code)
        await coder_for().check()


@pytest.mark.parametrize("cards", [True, False])
async def test_unknown_model(cards: bool, server: Loopback, coder_for: MakeCoder) -> None:
    server.cards = cards
    message = await refused(coder_for, model="gpt-4p")
    assert "'gpt-4p'" in message
    assert ("gpt-4o" in message) == cards
    assert server.requests == []


@pytest.mark.parametrize("cards", [True, False])
async def test_wrong_key(
    cards: bool, server: Loopback, coder_for: MakeCoder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.cards = cards
    server.key = "another"
    message = await refused(coder_for)
    assert "refuses the API key" in message
    assert "OPENAI_API_KEY" in message
    assert KEY not in caplog.text


async def test_unreachable_server(coder_for: MakeCoder) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    message = await refused(coder_for, base_url=url)
    assert url in message


async def test_unknown_host(coder_for: MakeCoder) -> None:
    message = await refused(coder_for, base_url="http://no-such-host.invalid/v1")
    assert "no-such-host.invalid" in message


async def test_address_without_its_path(server: Loopback, coder_for: MakeCoder) -> None:
    message = await refused(coder_for, base_url=server.url.removesuffix("/v1"))
    assert "/v1" in message.partition("404")[2]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(503, message="Loading."), "Loading."),
        (status(403, message="Not for you."), "Not for you."),
        (status(429, code="insufficient_quota"), "no credit left"),
        (body("<html>Welcome</html>", content_type="text/html"), "no JSON"),
        (cut(), "cannot be used"),
    ],
)
async def test_a_server_that_cannot_answer(
    answer: Answer, words: str, server: Loopback, coder_for: MakeCoder
) -> None:
    server.cards = False
    server.default = answer
    assert words in await refused(coder_for)


async def test_no_key(coder_for: MakeCoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "  "):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("OPENAI_API_KEY", value)
        message = await refused(coder_for, base_url="")
        assert "OPENAI_API_KEY is not set" in message
        assert "https://api.openai.com/v1" in message


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "0.0.0.0:80", "a.localhost"]
)
def test_servers_of_this_machine_need_no_key(host: str) -> None:
    assert find_endpoint(CoderConfig(base_url=f"http://{host}/v1"), {}).key == NO_KEY
    assert find_endpoint(CoderConfig(base_url=f"http://{host}/v1"), {"OPENAI_API_KEY": "k"}).key == "k"


def test_servers_elsewhere_need_one_unless_it_is_waived() -> None:
    with pytest.raises(CoderError, match="MY_KEY"):
        find_endpoint(CoderConfig(base_url=REMOTE, api_key_env="MY_KEY"), {"OPENAI_API_KEY": "k"})
    assert find_endpoint(CoderConfig(base_url=REMOTE, api_key_env=""), {"": "x"}).key == NO_KEY
    assert find_endpoint(CoderConfig(base_url=REMOTE), {"OPENAI_API_KEY": f" {KEY}\n"}).key == KEY


@pytest.mark.parametrize("key", ["a b", "a\nb", "schlüssel", "“quoted”"])
def test_a_key_that_is_none_is_not_sent(key: str) -> None:
    with pytest.raises(CoderError, match="characters") as caught:
        find_endpoint(CoderConfig(base_url=REMOTE), {"OPENAI_API_KEY": key})
    assert key not in str(caught.value)


async def test_without_a_key_none_is_sent(
    server: Loopback, coder_for: MakeCoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = None
    monkeypatch.delenv("OPENAI_API_KEY")
    await coder_for().implement(request())
    assert server.headers[0]["Authorization"] == f"Bearer {NO_KEY}"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://r.openai.azure.com/?api-version=1", "https://r.openai.azure.com/openai/deployments/m"),
        ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1"),
        ("https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com/openai/v1"),
        (
            "https://proxy.example/openai/deployments/d?api-version=1",
            "https://proxy.example/openai/deployments/d",
        ),
        ("https://host.example/v1/chat/completions", "https://host.example/v1"),
    ],
)
def test_addresses_in_azures_style(given: str, url: str) -> None:
    endpoint = find_endpoint(CoderConfig(model="m", base_url=given), {"OPENAI_API_KEY": KEY})
    assert endpoint.url == url
    assert endpoint.headers == ({"api-key": KEY} if "host.example" not in given else {})
    assert KEY not in repr(endpoint)


async def test_a_deployment_of_azure(server: Loopback, coder_for: MakeCoder) -> None:
    base = server.url.removesuffix("/v1") + "/openai/deployments/gpt-4o?api-version=2024-10-21"
    coder = coder_for(base_url=base, timeout_s=20.0)
    await coder.check()
    assert (await coder.implement(request())).kernel
    assert server.queries[-1] == {"api-version": "2024-10-21"}
    gone = base.replace("gpt-4o", "gpt-4p")
    assert "no model" in await refused(coder_for, base_url=gone)
