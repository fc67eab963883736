"""`kpipe replay evaluate`: stored kernels judged once more, as a round of their own, and how far the two agree."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from kpipe.config import from_json
from kpipe.domain.harness import HARNESS, device_kind
from kpipe.domain.near import near
from kpipe.domain.verdict import Outcome
from kpipe.errors import UsageError
from kpipe.replay.lookup import near_ids
from kpipe.store import rounds
from kpipe.store.database import Database
from kpipe.store.records import JudgedKernel, Run

SAMPLE = 10
POLL_S = 0.5
DRIFT = 0.1
"""Speedups have drifted when their intervals do not overlap and they are farther apart than this share."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A stored verdict and a new one on the same kernel."""

    before: JudgedKernel
    after: JudgedKernel

    @property
    def judged(self) -> bool:
        """False when the machine failed on either side: that says nothing about the kernel."""
        return not {self.before.outcome, self.after.outcome} & {None, Outcome.INFRA.value}

    @property
    def agree(self) -> bool:
        return self.before.outcome == self.after.outcome

    @property
    def ratio(self) -> float | None:
        """New speedup / stored speedup."""
        if not self.before.speedup or self.after.speedup is None:
            return None
        return self.after.speedup / self.before.speedup

    @property
    def overlap(self) -> bool | None:
        """Of the 95 % intervals; None where there are not two."""
        a, b = self.before, self.after
        if a.speedup_low is None or a.speedup_high is None or b.speedup_low is None or b.speedup_high is None:
            return None
        return a.speedup_low <= b.speedup_high and b.speedup_low <= a.speedup_high

    @property
    def drifted(self) -> bool:
        return self.overlap is False and self.ratio is not None and abs(self.ratio - 1) > DRIFT


def choose(
    db: Database, run: Run, *, sample: int | None, best: bool, problem: str | None, turn: int | None
) -> list[JudgedKernel]:
    """The verdicts to repeat; without a wish, a sample. Raises UsageError when there are none."""
    known = db.read(rounds.judged_kernels, run.id)
    if not known:
        raise UsageError(f"Run {run.name!r} has no verdicts yet.", "Wait until some kernels are evaluated.")
    if turn is not None:
        return [_of_turn(db, run, known, turn)]
    if problem is not None:
        names = sorted({k.problem for k in known})
        if problem not in names:
            raise UsageError(
                f"Run {run.name!r} has no verdict on a problem {problem!r}.{near(problem, names)}",
                f"Its problems: {', '.join(names)}.",
            )
        return [k for k in known if k.problem == problem]
    if best:
        chosen = db.read(rounds.best, run.id)
        if not chosen:
            raise UsageError(f"Run {run.name!r} has no correct kernel yet.", "Choose --sample or --problem.")
        return [k for k in known if k.id in chosen]
    return spread(known, sample or SAMPLE)


def spread(known: Sequence[JudgedKernel], n: int) -> list[JudgedKernel]:
    """`n` of them at random, the same for the same verdicts."""
    if n >= len(known):
        return list(known)
    picked = set(random.Random(0).sample(range(len(known)), n))
    return [k for i, k in enumerate(known) if i in picked]


def again(
    db: Database, run: Run, chosen: Sequence[JudgedKernel], *, same_seeds: bool, now: bool
) -> list[Pair]:
    """Queue the kernels and wait for the verdicts, or give them here (`now`). Raises KpipeError."""
    config = from_json(run.config).evaluate
    device = device_kind(config.device)
    number, jobs = db.write(rounds.enqueue, chosen, HARNESS, device, same_seeds=same_seeds)
    if now:
        from kpipe.evaluate import worker

        while _waiting(db, jobs) and not worker.work(db, config, once=True):
            time.sleep(POLL_S)
        if left := _waiting(db, jobs):
            raise UsageError(
                f"Interrupted: {left} kernels of round {number} still wait.", "`kpipe evaluate` goes on."
            )
    else:
        _wait(db, number, jobs)
    after = db.read(rounds.kernels, jobs)
    return [Pair(k, after[job]) for k, job in zip(chosen, jobs, strict=True)]


def _of_turn(db: Database, run: Run, known: Sequence[JudgedKernel], turn: int) -> JudgedKernel:
    by_turn = db.read(rounds.evaluations_of_turns, run.id)
    found = [k for k in known if k.id == by_turn.get(turn)]
    if found:
        return found[0]
    judged = {k.id for k in known}
    what = "no verdict" if turn in by_turn else f"no turn {turn}"
    raise UsageError(
        f"Run {run.name!r} has {what}{' on turn ' + str(turn) if turn in by_turn else ''}."
        f"{near_ids(turn, [t for t, e in by_turn.items() if e in judged])}",
        "`SELECT turn_id, problem, outcome FROM v_turn` lists all.",
    )


def _waiting(db: Database, jobs: Sequence[int]) -> int:
    return sum(k.state in ("queued", "running") for k in db.read(rounds.kernels, jobs).values())


def _wait(db: Database, number: int, jobs: Sequence[int]) -> None:
    """Until every job has a verdict. Ctrl-C leaves them in the queue."""
    console = Console(stderr=True, highlight=False, markup=False)
    told = f"Round {number}: {{}} kernels wait for `kpipe evaluate` (Ctrl-C leaves them queued; --now works here)."
    with console.status(told.format(len(jobs))) as status:
        while left := _waiting(db, jobs):
            status.update(told.format(left))
            time.sleep(POLL_S)


def print_agreement(pairs: Sequence[Pair]) -> None:
    """A row per kernel, then how many agree."""
    console = Console(highlight=False, markup=False)
    table = Table("problem", "kernel", "was", "is", "speedup was", "is", "ratio", "", box=None)
    for p in pairs:
        ratio = "" if p.ratio is None else f"{p.ratio:.2f}"
        note = _note(p)
        row = (p.before.problem, p.before.kernel_sha[:8], p.before.outcome or "", p.after.outcome or "")
        table.add_row(*row, _interval(p.before), _interval(p.after), ratio, note)
    console.print(table)
    console.print(summary(pairs), soft_wrap=True)


def _note(p: Pair) -> str:
    if not p.judged:
        return "not judged"
    return "ANOTHER VERDICT" if not p.agree else "drifted" if p.drifted else ""


def holds(pairs: Sequence[Pair]) -> bool:
    """True when something was judged again, and every verdict is the same."""
    judged = [p for p in pairs if p.judged]
    return bool(judged) and all(p.agree for p in judged)


def summary(pairs: Sequence[Pair]) -> str:
    judged = [p for p in pairs if p.judged]
    ratios = [p.ratio for p in judged if p.agree and p.ratio is not None]
    sentence = f"{sum(p.agree for p in judged)} of {len(judged)} verdicts agree"
    if len(judged) < len(pairs):
        sentence += f", {len(pairs) - len(judged)} could not be judged (infra)"
    if ratios:
        drifted = sum(p.drifted for p in judged if p.agree)
        sentence += f"; median ratio of speedups {median(ratios):.3f}, {drifted} of {len(ratios)} drifted"
    return f"{sentence}."


def as_json(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "before": asdict(p.before),
            "after": asdict(p.after),
            "judged": p.judged,
            "agree": p.agree,
            "ratio": p.ratio,
            "overlap": p.overlap,
            "drifted": p.drifted,
        }
        for p in pairs
    ]


def _interval(k: JudgedKernel) -> str:
    if k.speedup is None or k.speedup_low is None or k.speedup_high is None:
        return ""
    return f"{k.speedup:.2f} ({k.speedup_low:.2f}-{k.speedup_high:.2f})"
