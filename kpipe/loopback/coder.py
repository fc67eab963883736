"""Chat replies by the built-in coder's rules: a language model's part, played without one."""

from __future__ import annotations

import re
from typing import Any

from kpipe import problems
from kpipe.coder.base import CoderRequest
from kpipe.coder.builtin import rewrite
from kpipe.domain.verdict import Outcome
from kpipe.loopback.answers import code_reply

_NAME = re.compile(r"^Problem: (\S+)", re.M)
_REFERENCE = re.compile(r"^Reference:\n```python\n(.*?)\n```$", re.M | re.S)
_CURRENT = re.compile(r"^Current kernel:\n```python\n(.*?)\n```$", re.M | re.S)
_FAILURE = re.compile(r"^The current kernel fails \(([\w ]+)\)", re.M)
_SUGGESTION = re.compile(r"^Suggestion to carry out:\n(.*?)\n\nAnswer with the whole", re.M | re.S)


def implement(messages: Any) -> str:
    """The reply to kpipe's own request; to any other one, and to a problem that is not built in, a fixed kernel."""
    text = _last_question(messages)
    name, suggestion = _NAME.search(text), _SUGGESTION.search(text)
    problem = next((p for p in problems.builtin() if name and p.name == name[1]), None)
    reference = _REFERENCE.search(text)
    if problem is None or suggestion is None or reference is None:
        return code_reply()
    if reference[1].strip() != problem.source.strip():
        return code_reply()
    current, failure = _CURRENT.search(text), _FAILURE.search(text)
    kernel = current[1] + "\n" if current else problem.source
    outcome = Outcome(failure[1].replace(" ", "_")) if failure else None
    return code_reply(rewrite(CoderRequest(problem, kernel, suggestion[1], outcome)))


def _last_question(messages: Any) -> str:
    """The first user message that holds a problem; reminders come after it."""
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str) and _SUGGESTION.search(content):
            return content
    return ""
