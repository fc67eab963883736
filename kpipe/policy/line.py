"""The connection to a policy server: POST and GET with retries, and sentences for what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp

from kpipe.config import PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy.wire import Call

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
CONNECT_S = 10.0
SHOWN_CHARS = 200
_AGAIN = (408, 409, 425, 429)


class Refused(PolicyError):
    """The server answered with an error `status` that will not go away by itself."""

    def __init__(self, status: int, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.status = status


class Line:
    """``async with Line(config) as line``. Asking twice for a sample costs nothing: everything is tried again."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self.root = config.base_url.rstrip("/").removesuffix("/v1")
        self._key = _key(config)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Line:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session
        await self._session.close()

    async def get(self, path: str) -> Any:
        """The JSON there, at the first try. Raises PolicyError."""
        return await self._once("GET", Call(path))

    async def post(self, call: Call, *, patient: bool = True) -> Any:
        """The JSON or text of the answer. `patient`: again until `policy.timeout_s` is over. Raises PolicyError."""
        deadline, wait_s = time.monotonic() + self._config.timeout_s, FIRST_WAIT_S
        while True:
            try:
                async with asyncio.timeout_at(
                    asyncio.get_running_loop().time() + deadline - time.monotonic()
                ):
                    return await self._once("POST", call)
            except (TimeoutError, _Passing) as error:
                pause_s = wait_s * random.uniform(0.5, 1.0)
                if not patient or time.monotonic() + pause_s >= deadline:
                    raise self._unreachable(str(error) or "no answer in time") from None
            await asyncio.sleep(pause_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _once(self, method: str, call: Call) -> Any:
        assert self._session
        url = self.root + call.path
        try:
            async with self._session.request(
                method, url, json=call.body, params=_query(call.query)
            ) as response:
                text = await response.text(errors="replace")
                status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = _line(str(error)) or type(error).__name__
            raise (_Passing(reason) if method == "POST" else self._unreachable(reason)) from None
        if status < 300:
            return _json(text)
        if status in _AGAIN or status >= 500:
            if method == "POST":
                raise _Passing(f"status {status}: {self._said(text)}")
            raise self._unreachable(f"status {status}")
        raise self._refused(call.path, status, text)

    def _unreachable(self, reason: str) -> PolicyError:
        return PolicyError(
            f"The policy server at {self.root} cannot be used ({self._scrub(reason)}).",
            "Start it, or correct policy.base_url.",
        )

    def _refused(self, path: str, status: int, text: str) -> Refused:
        if status in (401, 403):
            fix = "Set policy.api_key_env to the name of the variable with its key, and export that variable."
            return Refused(status, f"The policy server at {self.root} refuses the key.", fix)
        message = f"The policy server at {self.root} refuses {path} (status {status}: {self._said(text)})."
        return Refused(status, message, "Check policy.base_url, policy.engine and policy.served_model.")

    def _said(self, text: str) -> str:
        tree = _json(text)
        error = tree.get("error", tree) if isinstance(tree, dict) else text
        said = error.get("message") or error.get("detail") or text if isinstance(error, dict) else error
        return self._scrub(_line(str(said))) or "no message"

    def _scrub(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _Passing(Exception):
    """May go away by itself."""


def _key(config: PolicyConfig) -> str:
    if not config.api_key_env:
        return ""
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise PolicyError(
            f"The environment variable {config.api_key_env} with the policy server's key is not set.",
            f"export {config.api_key_env}=..., or leave policy.api_key_env empty for a server that wants none.",
        )
    return key


def _query(query: Mapping[str, str]) -> dict[str, str]:
    return dict(query)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _line(text: str) -> str:
    return " ".join(text.split())[:SHOWN_CHARS]
