"""Live progress of a run: a panel on a terminal, one line per update elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kpipe.config import Config
from kpipe.store import inspect
from kpipe.store.database import Database
from kpipe.store.records import Run

BARS = " ▁▂▃▄▅▆▇█"
REFRESH_S, LINE_S = 0.5, 10.0
REST = 20
"""The next look at the store waits this many times as long as the last one took: a large one must not cost the run."""


@dataclass
class Progress:
    """Draws what the store says; knows nothing of the processes. Use as a context manager."""

    console: Console
    db: Database
    run: Run
    config: Config
    started: float = field(default_factory=time.monotonic)
    _first_step: tuple[int, float] | None = None
    _printed: int = -1
    _next_draw: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def tick(self, step: int) -> None:
        """Called a few times a second with the last committed update."""
        now = time.monotonic()
        if self._first_step is None:
            self._first_step = (step, now)
        if self._live is None:
            self._line(step)
        elif now >= self._next_draw:
            self._live.update(self._panel(step), refresh=True)
            drawn = time.monotonic()
            self._next_draw = drawn + max(REFRESH_S, REST * (drawn - now))

    def _line(self, step: int) -> None:
        if step == 0:
            self._before_the_first(time.monotonic())
            return
        if step == self._printed:
            return
        self._printed = step
        facts = self.db.read(inspect.progress, self.run.id)
        self.console.print(
            f"[{self._elapsed()}] update {step}/{self.config.train.max_steps}  "
            f"mean reward {_number(facts.get('mean_reward'))}  mean best speedup {_number(facts.get('mean_best'))}  "
            f"queue {facts['queued']}+{facts['running']}  left {self._left(step)}",
            highlight=False,
        )

    def _before_the_first(self, now: float) -> None:
        """Preparing the policy takes a while, and so do the first kernels."""
        if self._printed < 0:
            self._printed = 0
            self.console.print(f"[{self._elapsed()}] stages started; the policy is being prepared")
        elif now >= self._next_draw:
            facts = self.db.read(inspect.progress, self.run.id)
            if facts["turns"]:
                self.console.print(
                    f"[{self._elapsed()}] collecting for the first update: {facts['turns']} turns, "
                    f"{facts['groups_complete']} groups complete, {facts['done']} kernels judged",
                    highlight=False,
                )
        else:
            return
        self._next_draw = now + LINE_S

    def _panel(self, step: int) -> Panel:
        facts = self.db.read(inspect.progress, self.run.id)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            "update",
            f"{step} of {self.config.train.max_steps}",
            "elapsed",
            self._elapsed(),
            "left",
            self._left(step),
        )
        stages = Table.grid(padding=(0, 2))
        stages.add_row(
            "collect",
            f"{facts['groups_open']} groups open, {facts['groups_complete']} complete, {facts['turns']} turns",
        )
        stages.add_row(
            "evaluate", f"{facts['queued']} queued, {facts['running']} running, {facts['done']} done"
        )
        stages.add_row("train", _train_words(facts))
        rewards = [value for _, value in sorted(facts["reward_by_step"].items())]
        curve = Text(f"reward by update  {sparkline(rewards)}  {_number(facts.get('mean_reward'))}")
        best = ", ".join(f"{name} {speedup:.1f}x" for name, speedup in list(facts["best"].items())[:8])
        bar = ProgressBar(total=self.config.train.max_steps, completed=step, width=60)
        return Panel(
            Group(head, bar, stages, curve, Text(f"best speedups     {best or '-'}")),
            title=f"kpipe run {self.run.name}",
        )

    def _elapsed(self) -> str:
        return clock(time.monotonic() - self.started)

    def _left(self, step: int) -> str:
        """By the pace since the first update of this start; nothing is promised before there is one."""
        if self._first_step is None or step <= self._first_step[0]:
            return "?"
        steps, since = self._first_step
        return clock((time.monotonic() - since) / (step - steps) * (self.config.train.max_steps - step))


def sparkline(xs: list[float]) -> str:
    """One character per value, from the lowest to the highest."""
    if not xs:
        return "-"
    low, span = min(xs), max(xs) - min(xs) or 1.0
    return "".join(BARS[1 + round((x - low) / span * (len(BARS) - 2))] for x in xs)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _train_words(facts: dict[str, Any]) -> str:
    metrics = facts.get("metrics") or {}
    if not metrics:
        return "waits for complete groups" if facts["turns"] else "waits for the policy"
    return f"loss {_number(metrics.get('loss'))}, KL {_number(metrics.get('kl'))}, entropy {_number(metrics.get('entropy'))}"
