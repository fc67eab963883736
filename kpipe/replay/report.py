"""What a person reads about a replay of training, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kpipe.replay.retrain import Replayed
from kpipe.replay.whatif import Plan
from kpipe.store.records import TrainStep

POOR_ESS = 0.5
WHAT_IF = (
    ("update", "update"),
    ("of", "source_update"),
    ("trained", "trained"),
    ("reward", "reward"),
    ("loss", "loss"),
    ("grad", "grad_norm"),
    ("ESS", "ess"),
    ("(was)", "source_ess"),
    ("KL", "mismatch_kl"),
    ("(was)", "source_mismatch_kl"),
)
"""Title and key of each column; narrow enough for 80 characters."""


def print_retrained(done: Sequence[Replayed]) -> None:
    """A row per update, then one sentence about the first difference, if there is one."""
    console = Console(highlight=False, markup=False)
    table = Table("update", "reward", "loss", "grad norm", "parameters", "result", box=None)
    for r in done:
        numbers = (_number(r.again.get(name)) for name in ("reward_mean", "loss", "grad_norm"))
        table.add_row(str(r.step), *numbers, _parameters(r), _result(r))
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


def print_what_if(run: str, plan: Plan, new: Sequence[TrainStep], old: Sequence[TrainStep]) -> None:
    """A row per update, beside the update of the source that used the same rollouts."""
    console = Console(highlight=False, markup=False)
    table = Table(*(title for title, _ in WHAT_IF), box=None)
    for row in what_if_json(plan, new, old):
        table.add_row(*(_short(row[name]) for _, name in WHAT_IF))
    console.print(table)
    console.print(
        "ESS is the effective share of the tokens, KL the mismatch per token; (was): in the source."
    )
    changes = ", ".join(f"{k} {a} -> {b}" for k, (a, b) in plan.lineage()["changes"].items())
    console.print(f"Run {run}: the rollouts of {plan.source.name} with {changes or 'nothing changed'}.")
    poorest = min(new, key=lambda s: s.metrics["mismatch_ess"])
    if (ess := poorest.metrics["mismatch_ess"]) < POOR_ESS:
        console.print(
            f"At update {poorest.step} the effective sample size is {ess:.0%} of the tokens:"
            " these rollouts say little about the policy that it had become.",
            soft_wrap=True,
        )


def what_if_json(plan: Plan, new: Sequence[TrainStep], old: Sequence[TrainStep]) -> list[dict[str, Any]]:
    """ESS is a share of the tokens (1: as good as its own samples), mismatch KL is per token (k3)."""
    source = {s.step: s.metrics for s in old}
    return [
        {
            "update": step.step,
            "source_update": then,
            "groups": step.metrics["groups"],
            "trained": step.metrics["samples_trained"],
            "reward": step.metrics["reward_mean"],
            "loss": step.metrics["loss"],
            "grad_norm": step.metrics["grad_norm"],
            "ess": step.metrics["mismatch_ess"],
            "source_ess": source[then]["mismatch_ess"],
            "mismatch_kl": step.metrics["mismatch_k3"],
            "source_mismatch_kl": source[then]["mismatch_k3"],
        }
        for step, then in zip(new, plan.steps, strict=False)
    ]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else _number(value)


def _parameters(r: Replayed) -> str:
    return r.compared if r.compared == "metrics only" else f"by {r.compared}"


def _result(r: Replayed) -> str:
    if r.first is None:
        return "equal"
    return f"within {r.tolerance:g}" if r.accepted else "DIFFERS"


def _summary(done: Sequence[Replayed]) -> str:
    found = next((r for r in done if r.first), None)
    if found is None or found.first is None:
        blind = sum(r.compared == "metrics only" for r in done)
        unseen = (
            f" The parameters of {blind} are pruned, and were made elsewhere: metrics only." if blind else ""
        )
        return f"All {len(done)} updates came out equal, bit for bit.{unseen}"
    d = found.first
    size = "" if d.size is None else f", a difference of {d.size:.3g}"
    start = "First difference" if not found.accepted else "Rounding only; first"
    where = (
        f"{start}: update {found.step}, {d.what}: stored {_number(d.stored)}, now {_number(d.again)}{size}."
    )
    return f"{where}\nWhy: {found.why}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
