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
from kpipe.coder.base import Budget, CoderReply, CoderRequest
from kpipe.coder.chat import Chat
from kpipe.coder.conversation import Conversation, worst_tokens
from kpipe.coder.endpoint import find_endpoint
from kpipe.coder.messages import Asked, ask
from kpipe.config import CoderConfig
from kpipe.domain.extract import extract_kernel
from kpipe.domain.problem import Problem
from kpipe.errors import CoderError
from kpipe.store.records import CoderCall

Lookup = Callable[[str], Awaitable[CoderCall | None]]

REMEMBERED = 1024
"""Answers kept in memory: more than can be between a reply and its transaction at any moment."""


@dataclass(slots=True)
class _Flight:
    """A request on its way. What a failure cost is handed out once, however many wait for it."""

    task: asyncio.Task[CoderReply]
    billed: bool = False


class OpenAICoder:
    """Implements the Coder port. Raises CoderError at once when there is no key or no valid address."""

    def __init__(
        self, cfg: CoderConfig, lookup: Lookup, *, device: str = "cpu", budget: Budget | None = None
    ) -> None:
        self._cfg, self._lookup, self._device, self._budget = cfg, lookup, device, budget
        self._endpoint = find_endpoint(cfg, os.environ)
        self._chat = Chat(cfg, self._endpoint)
        self._flights: dict[str, _Flight] = {}
        self._answered: OrderedDict[str, CoderReply] = OrderedDict()

    def supports(self, problem: Problem) -> str | None:
        """A language model tries everything."""
        return None

    async def check(self) -> None:
        await probe.check(self._chat)
        if self._budget is not None:
            worst = worst_tokens([], self._cfg.max_tokens, self._cfg.continuations)
            await self._budget.check(dollars(self._cfg, *worst))

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
        if self._budget is None:
            return await self._pay(asked)
        worst = worst_tokens(asked.messages, self._cfg.max_tokens, self._cfg.continuations)
        await self._budget.reserve(asked.key, dollars(self._cfg, *worst))
        try:
            return await self._pay(asked)
        except CoderError:
            await self._budget.release(asked.key)
            raise
        finally:
            self._budget.landed(asked.key)

    async def _pay(self, asked: Asked) -> CoderReply:
        talk = Conversation(self._chat, self._cfg.continuations)
        kernel, error = await talk.run(asked.messages)
        return CoderReply(kernel, self._call(asked, talk, error), error)

    def _call(self, asked: Asked, talk: Conversation, error: str | None) -> CoderCall:
        """One row of the ledger for all that was sent on behalf of one request."""
        replies = talk.replies
        tokens_in, tokens_out = sum(r.tokens_in for r in replies), sum(r.tokens_out for r in replies)
        return CoderCall(
            key=asked.key,
            model=self._cfg.model,
            request=asked.text,
            reply=talk.text if error is None else None,
            error=error,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            usd=dollars(self._cfg, tokens_in, tokens_out, sum(r.tokens_cached for r in replies)),
            seconds=sum(r.seconds for r in replies),
            attempts=sum(r.attempts for r in replies),
        )


def dollars(cfg: CoderConfig, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
    """What these tokens cost; `cached` ones are among those of the prompt."""
    price = cfg.usd_per_million_in if cfg.usd_per_million_cached is None else cfg.usd_per_million_cached
    fresh = (tokens_in - cached) * cfg.usd_per_million_in
    return (fresh + cached * price + tokens_out * cfg.usd_per_million_out) / 1e6
