"""What tests of the evaluator share: kernels to judge, and a build cache that outlives the session."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

KERNELS = Path(__file__).parent / "assets" / "kernels"
CACHE = Path(tempfile.gettempdir()) / f"kpipe-tests-{os.getuid()}"
"""Filling it takes a minute; its keys hold all that matters, so that it is never stale."""


def source(name: str) -> str:
    """A kernel of tests/assets/kernels; `reference` is the problem that all of them answer."""
    return (KERNELS / f"{name}.py").read_text()
