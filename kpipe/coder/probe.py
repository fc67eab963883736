"""Can this model be used at all? Asked once, before anything is opened or paid."""

from __future__ import annotations

import difflib

import openai

from kpipe.coder.chat import NETWORK_ERRORS, NO_MODEL, Chat
from kpipe.errors import CoderError

RETRIES = 2
SHOWN_MODELS = 5
_TAKEN = {400, 408, 409, 422, 429}
"""Refusals of a one-token question that still show a server with this model: too short, or too busy."""


async def check(chat: Chat) -> None:
    """Raises CoderError when the server cannot be reached, or refuses the key or the model.

    The model's card costs nothing; where a server does not show one, a question for one token decides.
    """
    asking = chat.client.with_options(max_retries=RETRIES)
    try:
        card: object = await asking.models.retrieve(chat.cfg.model)
    except openai.APIStatusError as error:
        hopeless = chat.hopeless(error) if error.status_code != 404 or error.code in NO_MODEL else None
        if hopeless:
            raise await _with_names(chat, hopeless) from None
    except NETWORK_ERRORS as error:
        raise _unreachable(chat, str(error.__cause__ or error)) from None
    else:
        if isinstance(getattr(card, "id", None), str):
            return
    await _check_by_asking(chat)


async def _check_by_asking(chat: Chat) -> None:
    short = Chat(chat.cfg.model_copy(update={"max_tokens": 1, "max_retries": RETRIES}), chat.endpoint)
    try:
        reply = await short.ask([{"role": "user", "content": "Hello"}])
    except CoderError as error:
        raise await _with_names(chat, error) from None
    finally:
        await short.close()
    if reply.error is None or reply.status in _TAKEN:
        return
    if reply.status:
        raise CoderError(
            f"{chat.endpoint.url} does not answer for {chat.cfg.model!r}: {reply.error}.",
            "Check the server, coder.base_url and what the key is allowed to use.",
        )
    raise _unreachable(chat, reply.error)


def _unreachable(chat: Chat, reason: str) -> CoderError:
    return CoderError(
        f"The coder's API at {chat.endpoint.url} cannot be used: {chat.endpoint.scrub(reason)}.",
        "Start the server, or check coder.base_url and the network.",
    )


async def _with_names(chat: Chat, error: CoderError) -> CoderError:
    """The same error; a wrong model's fix names those that the server has, most similar first."""
    if chat.cfg.model not in error.message:
        return error
    try:
        names = [model.id async for model in chat.client.models.list()]
    except (openai.OpenAIError, *NETWORK_ERRORS, AttributeError, TypeError, ValueError):
        return error
    near = (
        difflib.get_close_matches(chat.cfg.model, names, n=SHOWN_MODELS, cutoff=0.4) or names[:SHOWN_MODELS]
    )
    return CoderError(error.message, f"{error.fix} It serves {', '.join(near)}.") if near else error
