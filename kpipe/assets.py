"""Find the files that ship with kpipe, in a wheel, an editable install and a bare checkout alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset(name: str) -> Path:
    """Path of a shipped file or folder, e.g. ``presets/seed.toml`` or ``migrations``.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for root in (_PACKAGE, _PACKAGE.parent):
        if (path := root / name).exists():
            return path
    raise FileNotFoundError(f"{name} is missing from the kpipe installation")
