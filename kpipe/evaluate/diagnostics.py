"""What a compiler says, made fit for a policy and for a person: what matters, no paths of this machine, bounded."""

from __future__ import annotations

import re

LIMIT = 4096
_PATH = re.compile(r"(?:/[\w.+@%~-]+)+/(?=[\w.+-]+)")
_NOISE = re.compile(
    r"\s*(?:ninja: |FAILED: |\[\d+/\d+\]|compilation terminated|In file included from|\s+from |Error building extension"
    r"|\S*(?:c\+\+|g\+\+|clang\+\+|nvcc)\s+-|Traceback |cc1plus: all warnings|subprocess\.CalledProcessError)"
)
_ERROR = re.compile(r"\b(?:fatal )?error\b", re.I)


def trim(text: str, limit: int = LIMIT) -> str:
    """The lines from the first error on, directories removed, at most `limit` characters."""
    lines = [line.rstrip() for line in text.replace("\0", "").splitlines()]
    kept = [_PATH.sub("", line) for line in lines if line.strip() and not _NOISE.match(line)]
    first = next((i for i, line in enumerate(kept) if _ERROR.search(line)), 0)
    out = "\n".join(kept[first:])
    return out if len(out) <= limit else out[: limit - 20].rstrip() + "\n... (cut)"
