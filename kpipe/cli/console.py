"""Where people's output goes."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

FILE_WIDTH = 160
"""Of a line in a file or pipe, in characters: nothing is cut or broken for a screen that is not there."""


def console(**options: Any) -> Console:
    """As wide as the terminal, or as COLUMNS says."""
    made = Console(**options)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made = Console(width=FILE_WIDTH, **options)
    return made
