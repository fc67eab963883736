"""What a person reads about a replay of training, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kpipe.replay.retrain import Replayed


def print_retrained(done: Sequence[Replayed]) -> None:
    """A row per update, then one sentence about the first difference, if there is one."""
    console = Console(highlight=False)
    table = Table("update", "reward", "loss", "grad norm", "compared", "result", box=None)
    for r in done:
        numbers = (_number(r.again.get(name)) for name in ("reward_mean", "loss", "grad_norm"))
        table.add_row(str(r.step), *numbers, f"parameters by {r.compared}", _result(r))
    console.print(table)
    console.print(_summary(done), soft_wrap=True)


def retrained_json(done: Sequence[Replayed]) -> list[dict[str, Any]]:
    return [
        {
            "step": r.step,
            "equal": r.first is None,
            "accepted": r.accepted,
            "tolerance": r.tolerance,
            "compared": r.compared,
            "first_difference": asdict(r.first) if r.first else None,
            "why": r.why,
            "stored": r.stored,
            "again": r.again,
        }
        for r in done
    ]


def _result(r: Replayed) -> str:
    if r.first is None:
        return "equal, bit for bit"
    return f"within {r.tolerance:g}" if r.accepted else "DIFFERS"


def _summary(done: Sequence[Replayed]) -> str:
    found = next((r for r in done if r.first), None)
    if found is None or found.first is None:
        return f"All {len(done)} updates came out equal, bit for bit."
    d = found.first
    size = "" if d.size is None else f", a difference of {d.size:.3g}"
    start = "First difference" if not found.accepted else "Rounding only; first"
    where = (
        f"{start}: update {found.step}, {d.what}: stored {_number(d.stored)}, now {_number(d.again)}{size}."
    )
    return f"{where}\nWhy: {found.why}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
