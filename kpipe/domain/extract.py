"""Find the kernel in a coder's reply."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.S | re.M)
_PYTHON = {"", "python", "py", "python3"}


def extract_kernel(reply: str) -> str | None:
    """The last complete Python block that defines ModelNew, or the bare reply if it is itself a module.

    None when the reply has no such code: a refusal, prose, or a block without ModelNew.
    """
    blocks = [(lang.lower(), body) for _, lang, body in _FENCE.findall(reply)]
    candidates = [body for lang, body in blocks if lang in _PYTHON] or [body for _, body in blocks]
    if not blocks:
        candidates = [reply]
    for body in reversed(candidates):
        if re.search(r"^class\s+ModelNew\b", body, re.M):
            return body.strip() + "\n"
    return None
