"""The summary at the end of `kpipe run`, drawn for a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kpipe.config import DEFAULT_DB, Config
from kpipe.run.summary import Rise, rise, verdict_sentence
from kpipe.store import inspect, policies
from kpipe.store.database import Database, without_password
from kpipe.store.records import Run

OFFLINE_NOTE = (
    "The coder was the built-in one: rules that read the suggestion, an offline stand-in for an LLM. "
    "Policy, builds, checks, timing and updates are real."
)


def print_report(console: Console, db: Database, db_url: str, run: Run, config: Config) -> None:
    """Everything that a person wants to know when a run is over. Reads the store only."""
    rewards = db.read(inspect.rewards_by_step, run.id)
    speedups = db.read(inspect.best_speedups_by_step, run.id)
    reward_rise = rise(rewards)
    if reward_rise is None:
        console.print(f"Run {run.name!r} has no two updates yet: nothing to compare.")
        return
    parts: list[object] = [_rises(reward_rise, rise(speedups), len(rewards))]
    parts.append(Text(verdict_sentence(reward_rise, len(rewards))))
    parts.append(_best_kernels(db, run))
    parts.append(_suggestions(db, run, rewards))
    if config.coder.kind == "builtin":
        parts.append(Text(OFFLINE_NOTE, style="dim"))
    console.print(Panel(Group(*parts), title=f"run {run.name}: {max(rewards)} updates"))  # type: ignore[arg-type]
    _next_steps(console, db, db_url, run)


def _rises(reward_rise: Rise, speedup_rise: Rise | None, updates: int) -> Table:
    n = max(1, updates // 5)
    table = Table(title=f"first {n} and last {n} updates, 95 % intervals", title_justify="left")
    for heading in ("", "first", "last", "factor"):
        table.add_column(heading)
    for name, r in (
        ("mean reward per turn", reward_rise),
        ("mean best speedup per trajectory", speedup_rise),
    ):
        if r is not None:
            factor = f"x{r.factor:.2f}" if r.factor is not None else "-"
            table.add_row(name, _interval(r.first), _interval(r.last), factor)
    return table


def _interval(i: object) -> str:
    return f"{i.value:.2f}  [{i.low:.2f}, {i.high:.2f}]"  # type: ignore[attr-defined]


def _best_kernels(db: Database, run: Run) -> Table:
    table = Table(title="best kernel of each problem", title_justify="left")
    for heading in ("problem", "speedup", "95 % interval", "eager ms", "kernel ms", "kernel"):
        table.add_column(heading)
    for best in db.read(inspect.best_kernels, run.id):
        table.add_row(
            best.problem,
            f"{best.speedup:.2f}x",
            f"[{best.speedup_low:.2f}, {best.speedup_high:.2f}]",
            f"{best.baseline_ms:.3f}",
            f"{best.time_ms:.3f}",
            best.kernel_sha[:12],
        )
    return table


def _suggestions(db: Database, run: Run, rewards: Mapping[int, Sequence[float]]) -> Table:
    table = Table(title="some suggestions", title_justify="left")
    table.add_column("of the first update")
    table.add_column("of the last update")
    first, last = (
        db.read(inspect.sample_suggestions, run.id, step, 4) for step in (min(rewards), max(rewards))
    )
    for a, b in zip(first, last, strict=False):
        table.add_row(a, b)
    return table


def options(run_name: str, db_url: str) -> str:
    """What to add to `kpipe run` to mean this run of this database. Passwords are stars."""
    words = [] if run_name in ("", "default") else ["--run", run_name]
    meant_anyway = os.environ.get("KPIPE_DB") or DEFAULT_DB
    words += [] if db_url == meant_anyway else ["--db", without_password(db_url)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _next_steps(console: Console, db: Database, db_url: str, run: Run) -> None:
    newest = db.read(policies.latest, run.id)
    if newest:
        console.print("final model:", os.path.relpath(newest.path), soft_wrap=True, highlight=False)
    here = options("", db_url)
    path = db_url.removeprefix("sqlite:///")
    client = (
        f"sqlite3 {shlex.quote(path)}"
        if path != db_url
        else f"psql {shlex.quote(without_password(db_url))} -c"
    )
    question = '"SELECT * FROM v_best"'
    console.print("next:")
    for line in (
        f"  {client} {question}",
        f"  kpipe run --run control --set train.learning_rate=0{here}  # the control experiment: no rise",
        f"  kpipe run --run real --preset seed{here}  # Qwen2-0.5B-Instruct suggests, gpt-4o implements",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
