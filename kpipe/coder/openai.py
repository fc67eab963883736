"""The coder that asks a language model, at any OpenAI-compatible API.

An identical request is answered from the store. One that is on its way is shared, and an answer stays in
memory until the store has it, so that nothing is ever paid twice.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kpipe.coder import probe
from kpipe.coder.base import CoderReply, CoderRequest
from kpipe.coder.chat import Chat
from kpipe.coder.completion import Reply
from kpipe.coder.endpoint import find_endpoint
from kpipe.coder.messages import Asked, ask, remind
from kpipe.config import CoderConfig
from kpipe.domain.extract import extract_kernel
from kpipe.domain.problem import Problem
from kpipe.store.records import CoderCall

Lookup = Callable[[str], Awaitable[CoderCall | None]]

REMEMBERED = 1024
"""Answers kept in memory: more than can be between a reply and its transaction at any moment."""
SHOWN_CHARS = 200


@dataclass(slots=True)
class _Flight:
    """A request on its way. What a failure cost is handed out once, however many wait for it."""

    task: asyncio.Task[CoderReply]
    billed: bool = False


class OpenAICoder:
    """Implements the Coder port. Raises CoderError at once when there is no key or no valid address."""

    def __init__(self, cfg: CoderConfig, lookup: Lookup, *, device: str = "cpu") -> None:
        self._cfg, self._lookup, self._device = cfg, lookup, device
        self._endpoint = find_endpoint(cfg, os.environ)
        self._chat = Chat(cfg, self._endpoint)
        self._flights: dict[str, _Flight] = {}
        self._answered: OrderedDict[str, CoderReply] = OrderedDict()

    def supports(self, problem: Problem) -> str | None:
        """A language model tries everything."""
        return None

    async def check(self) -> None:
        await probe.check(self._chat)

    async def close(self) -> None:
        """Stop what is on its way."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._chat.close()

    async def implement(self, request: CoderRequest) -> CoderReply:
        """Answer from memory, the store or the API. Raises CoderError when no request can succeed.

        A caller that is cancelled does not cancel the request: it is paid, and somebody may ask again.
        """
        asked = ask(request, self._cfg, base_url=self._endpoint.url, device=self._device)
        if known := self._answered.get(asked.key):
            return known
        flight = self._flights.get(asked.key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._fly(asked)))
            flight.task.add_done_callback(lambda task: self._landed(asked.key, task))
            self._flights[asked.key] = flight
        reply = await asyncio.shield(flight.task)
        if reply.kernel is None and flight.billed:
            return CoderReply(None, None, reply.error)
        flight.billed = True
        return reply

    def _landed(self, key: str, task: asyncio.Task[CoderReply]) -> None:
        del self._flights[key]
        if task.cancelled() or task.exception() or task.result().kernel is None:
            return
        self._answered[key] = task.result()
        if len(self._answered) > REMEMBERED:
            self._answered.popitem(last=False)

    async def _fly(self, asked: Asked) -> CoderReply:
        stored = await self._lookup(asked.key)
        if stored is not None and stored.error is None and (kernel := extract_kernel(stored.reply or "")):
            return CoderReply(kernel, stored)
        first = await self._chat.ask(asked.messages)
        replies, kernel, error = [first], *_judge(first)
        if kernel is None and error is None:
            second = await self._chat.ask(remind(asked.messages, first.text))
            replies, (kernel, error) = [first, second], _judge(second)
            if kernel is None and error is None:
                shown = self._endpoint.scrub(second.text[:SHOWN_CHARS])
                error = f"no code in two replies; the second begins {shown!r}"
        return CoderReply(kernel, self._call(asked, replies, error), error)

    def _call(self, asked: Asked, replies: list[Reply], error: str | None) -> CoderCall:
        """One row of the ledger for all that was sent on behalf of one request."""
        tokens_in, tokens_out = sum(r.tokens_in for r in replies), sum(r.tokens_out for r in replies)
        usd = (tokens_in * self._cfg.usd_per_million_in + tokens_out * self._cfg.usd_per_million_out) / 1e6
        return CoderCall(
            key=asked.key,
            model=self._cfg.model,
            request=asked.text,
            reply=replies[-1].text if error is None else None,
            error=error,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            usd=usd,
            seconds=sum(r.seconds for r in replies),
            attempts=sum(r.attempts for r in replies),
        )


def _judge(reply: Reply) -> tuple[str | None, str | None]:
    """The kernel, or why there is none and never will be; neither when a reminder may help."""
    if reply.error is not None:
        return None, reply.error
    if reply.finish == "length":
        return None, "the answer was cut off at coder.max_tokens"
    if reply.refusal or reply.finish == "content_filter":
        return None, f"refused: {reply.refusal[:SHOWN_CHARS] or 'by the content filter'}"
    return extract_kernel(reply.text), None
