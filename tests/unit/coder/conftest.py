"""A coder that talks to the loopback server, and waits no longer than a test should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from unit.coder.asking import KEY, MakeCoder

from kpipe.coder import completion
from kpipe.coder.openai import OpenAICoder
from kpipe.config import CoderConfig
from kpipe.loopback.server import Loopback
from kpipe.store.records import CoderCall


@pytest.fixture
async def server() -> AsyncIterator[Loopback]:
    async with Loopback(key=KEY) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(completion, "LONGEST_WAIT_S", 0.002)


@pytest.fixture
async def coder_for(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeCoder]:
    """Makes coders for the server; `stored` answers by key, other arguments are settings."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made: list[OpenAICoder] = []

    def make(lookup: Any = None, **settings: Any) -> OpenAICoder:
        async def nothing(_: str) -> CoderCall | None:
            return None

        values = {"kind": "openai", "base_url": server.url, "timeout_s": 60.0, "max_retries": 3, **settings}
        made.append(OpenAICoder(CoderConfig(**values), lookup or nothing))
        return made[-1]

    yield make
    for coder in made:
        await coder.close()
