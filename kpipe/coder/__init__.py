"""Who implements: the port, a client for any OpenAI-compatible API, and the offline rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kpipe.coder.base import Budget, Coder, CoderReply, CoderRequest
from kpipe.config import CoderConfig
from kpipe.store.records import CoderCall

__all__ = ["Budget", "Coder", "CoderReply", "CoderRequest", "open_coder"]

Lookup = Callable[[str], Awaitable[CoderCall | None]]


def open_coder(
    cfg: CoderConfig, lookup: Lookup, *, device: str = "cpu", budget: Budget | None = None
) -> Coder:
    """The configured coder, for kernels that run on `device` ('cpu' or 'cuda').

    `lookup` finds a stored answer by its key, so that nothing is paid twice; `budget` is asked before anything is
    paid. Raises CoderError.
    """
    if cfg.kind == "builtin":
        from kpipe.coder.builtin import BuiltinCoder

        return BuiltinCoder()
    from kpipe.coder.openai import OpenAICoder

    return OpenAICoder(cfg, lookup, device=device, budget=budget)
