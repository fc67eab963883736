"""Names that become folders and parts of commands."""

from __future__ import annotations

import re

from kpipe.errors import UsageError

_RUN = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}", re.ASCII)


def check_run_name(name: str) -> None:
    """A run's name is a folder in output_dir: it must be one, and stay inside. Raises UsageError."""
    if not _RUN.fullmatch(name):
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise UsageError(
            f"{shown!r} cannot be the name of a run.",
            "Take up to 100 of A-Z, a-z, 0-9, _, ., + and -, with a letter or a digit first.",
        )
