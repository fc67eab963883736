"""What a compiler says, made fit for a policy and for a person: what matters, no paths of this machine, bounded."""

from __future__ import annotations

import re

LIMIT = 4096
_PATH = re.compile(r"(?:/[\w.+@%~-]+)+/(?=[\w.+-]+)")
_NOISE = re.compile(
    r"^\s*(?:ninja: |FAILED: |\[\d+/\d+\]|compilation terminated|In file included from|\s+from )"
)


def trim(text: str, limit: int = LIMIT) -> str:
    """The lines from the first error on, directories removed, at most `limit` characters."""
    lines = [
        _PATH.sub("", line.rstrip()) for line in text.splitlines() if line.strip() and not _NOISE.match(line)
    ]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    out = "\n".join(lines[first:]).replace("\0", "")
    return out if len(out) <= limit else out[: limit - 20].rstrip() + "\n... (cut)"
