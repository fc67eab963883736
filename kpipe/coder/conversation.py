"""All that is sent on behalf of one request: the question, going on where a reply was cut off, one reminder."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpipe.coder.chat import Chat
from kpipe.coder.completion import Reply
from kpipe.coder.messages import Messages, go_on, remind
from kpipe.domain.extract import ends_in_code, extract_kernel, join_cut

SHOWN_CHARS = 200
REMINDERS = 1
FRAME_TOKENS = 16
"""What a chat template puts around a message, generously."""


@dataclass
class Conversation:
    """`replies` are all that came back, `text` is the last whole one."""

    chat: Chat
    continuations: int
    replies: list[Reply] = field(default_factory=list)
    text: str = ""

    async def run(self, messages: Messages) -> tuple[str | None, str | None]:
        """The kernel, or the reason why there is none. Raises CoderError when no request can succeed."""
        kernel, error = await self._whole(messages)
        for _ in range(REMINDERS):
            if kernel is None and error is None:
                kernel, error = await self._whole(remind(messages, self.text))
        if kernel is None and error is None:
            shown = self.chat.endpoint.scrub(self.text[:SHOWN_CHARS])
            error = f"no code in two replies; the second begins {shown!r}"
        return kernel, error

    async def _whole(self, messages: Messages) -> tuple[str | None, str | None]:
        """One reply, continued where it was cut off; neither kernel nor error when a reminder may help."""
        self.text, left = "", self.continuations
        asked = messages
        while True:
            reply = await self.chat.ask(asked)
            self.replies.append(reply)
            if reply.error is not None:
                return None, reply.error
            self.text = join_cut(self.text, reply.text)
            if reply.refusal or reply.finish == "content_filter":
                return None, f"refused: {reply.refusal[:SHOWN_CHARS] or 'by the content filter'}"
            if reply.finish != "length":
                return extract_kernel(self.text), None
            if self.text and not ends_in_code(self.text) and (kernel := extract_kernel(self.text)):
                return kernel, None
            if left == 0 or not reply.text.strip():
                return None, "the answer was cut off at coder.max_tokens"
            left -= 1
            asked = go_on(messages, self.text)


def worst_tokens(messages: Messages, max_tokens: int, continuations: int) -> tuple[int, int]:
    """Tokens of prompts and of replies that one conversation can cost at most.

    No token is shorter than a byte; every later prompt repeats what was said before.
    """
    requests = (1 + REMINDERS) * (1 + continuations)
    prompt = sum(len(m["content"].encode()) + FRAME_TOKENS for m in messages)
    follow_up = max(sum(len(m["content"].encode()) for m in f([], "")) for f in (remind, go_on))
    said = max_tokens + follow_up + 2 * FRAME_TOKENS
    return requests * prompt + said * requests * (requests - 1) // 2, requests * max_tokens
