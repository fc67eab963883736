"""Chat completions of any OpenAI-compatible server: a bounded number at once, retried within a deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import aiohttp
import httpx2
import openai

from kpipe.coder.completion import Reply, Setback, read_completion, retry_after, wait_s
from kpipe.coder.endpoint import Endpoint
from kpipe.coder.messages import Messages
from kpipe.coder.pace import Pace, Ticket
from kpipe.config import CoderConfig
from kpipe.errors import CoderError

log = logging.getLogger("kpipe.coder")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # below that it logs addresses whole, with their query

CONNECT_S = 10.0
BYTES_PER_TOKEN = 64
OVERHEAD_BYTES = 1 << 20
"""Reading stops at max_tokens x BYTES_PER_TOKEN + OVERHEAD_BYTES: no honest answer is longer."""
CHARS_PER_TOKEN = 3
"""Of code, for the estimate that a limit of tokens per minute counts until the server has counted."""
NETWORK_ERRORS = (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError, OSError)
_RETRIED = {408, 409, 425, 429}
_NO_MONEY = {"insufficient_quota", "billing_hard_limit_reached"}
NO_MODEL = {"model_not_found", "DeploymentNotFound"}


class Chat:
    """One model at one endpoint. `client` makes one attempt per request: retrying is ours."""

    def __init__(self, cfg: CoderConfig, endpoint: Endpoint) -> None:
        self.cfg, self.endpoint = cfg, endpoint
        self._slots = asyncio.Semaphore(cfg.concurrency)
        self._pace = Pace(cfg.concurrency, cfg.rpm, cfg.tpm)
        self._limits: dict[str, Any] = {"temperature": cfg.temperature, "max_tokens": cfg.max_tokens}
        timeout = httpx2.Timeout(cfg.timeout_s, connect=min(CONNECT_S, cfg.timeout_s))
        self.client = openai.AsyncOpenAI(
            api_key=endpoint.key,
            base_url=endpoint.url,
            default_query=endpoint.query or None,
            default_headers=endpoint.headers or None,
            max_retries=0,
            timeout=timeout,
            http_client=openai.DefaultAioHttpClient(timeout=timeout),
        )

    async def close(self) -> None:
        await self.client.close()

    async def ask(self, messages: Messages) -> Reply:
        """The reply to these messages, or the reason why there is none.

        Waiting for a free slot or for a limit does not count against coder.timeout_s, everything else does.
        Raises CoderError when no request can succeed: wrong key, no such model, no credit left.
        """
        reply = Reply()
        async with self._slots:
            started = time.monotonic()
            try:
                async with asyncio.timeout(self.cfg.timeout_s) as deadline:
                    await self._retry(messages, reply, deadline)
            except TimeoutError:
                before = f"; before that: {reply.error}" if reply.error else ""
                reply.error = f"no answer within {self.cfg.timeout_s:g} s{before}"
            reply.seconds = time.monotonic() - started - reply.waited
        return reply

    async def _retry(self, messages: Messages, reply: Reply, deadline: asyncio.Timeout) -> None:
        for failures in range(self.cfg.max_retries + 1):
            setback, wait = await self._paced(messages, reply, failures, deadline)
            if setback is None:
                reply.error = None
                return
            reply.error, reply.status = self.endpoint.scrub(setback.reason), setback.status
            if not setback.again or failures == self.cfg.max_retries:
                return
            if asyncio.get_running_loop().time() + wait >= (deadline.when() or 0.0):
                reply.error += f"; the next attempt, in {wait:.0f} s, would be past coder.timeout_s"
                return
            log.info("%s: %s; attempt %d in %.1f s", self.cfg.model, reply.error, failures + 2, wait)
            await asyncio.sleep(wait)

    async def _paced(
        self, messages: Messages, reply: Reply, failures: int, deadline: asyncio.Timeout
    ) -> tuple[Setback | None, float]:
        """One attempt, once it may be made; its setback, and how long to wait for the next. Others wait as well
        where the server is overrun.
        """
        ticket = await self._admit(messages, reply, deadline)
        before, setback, known = reply.tokens_in + reply.tokens_out, None, False
        try:
            setback = await self._attempt(messages, reply, ticket)
            known = setback is None or setback.status != 0
        finally:
            tokens = reply.tokens_in + reply.tokens_out - before
            self._pace.land(ticket, answered=known and setback is None, tokens=tokens if known else None)
        if setback is None:
            return None, 0.0
        wait = wait_s(failures, setback.wait_s)
        if setback.status == 429 or (setback.status == 503 and setback.wait_s is not None):
            self._pace.hold(ticket, min(wait, self.cfg.timeout_s))
        return setback, wait

    async def _admit(self, messages: Messages, reply: Reply, deadline: asyncio.Timeout) -> Ticket:
        """Wait for our turn; the deadline waits with us."""
        loop = asyncio.get_running_loop()
        began, until = loop.time(), deadline.when()
        deadline.reschedule(None)
        try:
            return await self._pace.admit(
                sum(len(m["content"]) for m in messages) // CHARS_PER_TOKEN + self.cfg.max_tokens
            )
        finally:
            waited = loop.time() - began
            reply.waited += waited
            deadline.reschedule(None if until is None else until + waited)

    async def _attempt(self, messages: Messages, reply: Reply, ticket: Ticket) -> Setback | None:
        """Send once; again at once where the model only wants a parameter under another name."""
        while True:
            reply.attempts += 1
            sent = dict(self._limits)
            try:
                body = await self._send(messages, sent, ticket)
            except openai.APIStatusError as error:
                self._pace.hear(ticket, error.response.headers)
                if self._adapt(error, sent):
                    continue
                if hopeless := self.hopeless(error):
                    raise hopeless from None
                again = error.status_code in _RETRIED or error.status_code >= 500
                return Setback(error.message, again, error.status_code, retry_after(error.response.headers))
            except NETWORK_ERRORS as error:
                return Setback(f"the connection failed: {error.__cause__ or error}", again=True)
            if body is None:
                return Setback("the answer is longer than coder.max_tokens allows", again=False)
            return read_completion(body, reply)

    async def _send(self, messages: Messages, limits: dict[str, Any], ticket: Ticket) -> bytes | None:
        """The body of the answer; None when it is larger than any honest one."""
        most = self.cfg.max_tokens * BYTES_PER_TOKEN + OVERHEAD_BYTES
        body = bytearray()
        create: Any = self.client.chat.completions.with_streaming_response.create
        async with create(model=self.cfg.model, messages=messages, **limits) as response:
            self._pace.hear(ticket, response.headers)
            async for chunk in response.iter_bytes():
                body += chunk
                if len(body) > most:
                    return None
        return bytes(body)

    def _adapt(self, error: openai.APIStatusError, sent: dict[str, Any]) -> bool:
        """Newer models call the length limit by another name, or take no temperature but their own."""
        if (
            error.status_code != 400
            or error.param not in sent
            or not str(error.code).startswith("unsupported")
        ):
            return False
        value = self._limits.pop(error.param, None)
        if value is not None and error.param == "max_tokens":
            self._limits["max_completion_tokens"] = value
        elif value is not None:
            log.warning("%s does not take %s = %s and uses its own", self.cfg.model, error.param, value)
        return True

    def hopeless(self, error: openai.APIStatusError) -> CoderError | None:
        """What no retry mends. The server's own words are left out, they may quote the key."""
        url, model = self.endpoint.url, self.cfg.model
        if error.status_code == 401:
            return CoderError(
                f"{url} refuses the API key.",
                f"Check the environment variable {self.cfg.api_key_env}: is it a key for this address?",
            )
        if error.code in _NO_MONEY:
            return CoderError(
                f"The account at {url} has no credit left.", "Top it up or use another key, and go on."
            )
        if error.code in NO_MODEL:
            return CoderError(f"{url} has no model {model!r}.", "Set coder.model to one that it serves.")
        if error.status_code == 404:
            return CoderError(
                f"{url} answers 404: either it has no model {model!r}, or it is not the address of an API.",
                "Check coder.model, and coder.base_url: it usually ends in /v1.",
            )
        return None
