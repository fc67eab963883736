"""`kpipe replay score`: report what another formula or a new finding changes; `apply` writes it at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kpipe.config import from_json
from kpipe.replay import scoring
from kpipe.replay.lookup import find_run
from kpipe.replay.scoring import Rescoring
from kpipe.store import policies, runs, scores
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run
from kpipe.train.folder import CheckpointFolder, is_checkpoint_of

LARGEST = 10


def under_formula(db: Database, run_name: str, formula: str, *, apply: bool) -> Rescoring:
    """The run under another formula; with `apply` its later turns are scored so as well. Raises KpipeError."""
    run, cfg = find_run(db, run_name), scoring.read_formula(formula)
    if not apply:
        return db.read(scoring.under_formula, run, formula, cfg)

    def write(conn: Any) -> Rescoring:
        runs.lock(conn, [run.id])
        found = scoring.under_formula(conn, run, formula, cfg)
        _rescore(conn, found)
        for changed in {r.id: r for r in (run, *found.runs)}.values():
            runs.update_config(conn, changed.id, {**changed.config, "reward": cfg.model_dump(mode="json")})
        return found

    with _no_trainers(db, db.read(scoring.trained_on, [run])):
        return db.write(write)


def with_hacks(db: Database, what: str, *, apply: bool) -> Rescoring:
    """All runs, where the kernels that `what` means are hacks. Raises KpipeError."""
    if not apply:
        return db.read(scoring.with_hacks, what)

    def write(conn: Any) -> Rescoring:
        runs.lock(conn, [run.id for run in runs.list_(conn)])
        found = scoring.with_hacks(conn, what)
        scores.mark_hacks(conn, what, scores.kernels_meant(conn, what))
        _rescore(conn, found)
        return found

    with _no_trainers(db, db.read(runs.list_)):
        return db.write(write)


def _rescore(conn: Any, found: Rescoring) -> None:
    scores.rescore(conn, found.formula, found.changes, found.samples, [run.id for run in found.runs])


@contextmanager
def _no_trainers(db: Database, of: Sequence[Run]) -> Iterator[None]:
    """A trainer at work has read the old rewards and would commit them. Raises TrainError."""
    with ExitStack() as trainers:
        for run in of:
            folder = _folder(run, db.read(policies.latest, run.id))
            if folder.root.is_dir():
                trainers.enter_context(folder.locked())
        yield


def _folder(run: Run, newest: PolicyVersion | None) -> CheckpointFolder:
    """Where its trainer writes: beside the newest checkpoint, for `output_dir` may be relative to elsewhere."""
    if newest and is_checkpoint_of(Path(newest.path), run.name):
        return CheckpointFolder(str(Path(newest.path).parent.parent), run.name)
    return CheckpointFolder(from_json(run.config).output_dir, run.name)


def print_report(found: Rescoring, *, applied: bool) -> None:
    """How many turns change, means by problem, and the largest changes."""
    console = Console(highlight=False, markup=False)
    rewarded = sum(t.reward is not None for t in found.judged)
    console.print(
        f"{found.formula}: {len(found.changes)} of {rewarded} rewarded turns change, and {len(found.samples)}"
        f" trained samples; {scoring.turned(found.samples)} advantages change their sign.",
        soft_wrap=True,
    )
    if found.changes:
        console.print(_means_table(found))
        console.print(_changes_table(found))
    if applied:
        console.print("Written. The old values are in the journal: events of kind 'rescored'.")
    elif found.changes:
        console.print("Nothing was written; --apply does.")


def as_json(found: Rescoring, *, applied: bool) -> dict[str, Any]:
    return {
        "formula": found.formula,
        "applied": applied,
        "turns": sum(t.reward is not None for t in found.judged),
        "changed": len(found.changes),
        "signs_changed": scoring.turned(found.samples),
        "problems": [asdict(row) for row in scoring.means(found)],
        "changes": [
            {"turn": c.turn.id, "before": [c.turn.outcome, c.turn.reward], "after": [c.outcome, c.reward]}
            for c in found.changes
        ],
        "samples": [asdict(s) for s in found.samples],
    }


def _means_table(found: Rescoring) -> Table:
    table = Table("problem", "turns", "changed", "mean before", "mean after", box=None)
    for m in scoring.means(found):
        table.add_row(m.problem, str(m.turns), str(m.changed), f"{m.before:.3f}", f"{m.after:.3f}")
    return table


def _changes_table(found: Rescoring) -> Table:
    table = Table("turn", "trajectory", "problem", "outcome", "speedup", "reward", "", "", box=None)
    for c in scoring.largest(found, LARGEST):
        t = c.turn
        outcome = t.outcome if t.outcome == c.outcome else f"{t.outcome} -> {c.outcome}"
        speedup = "" if t.speedup is None else f"{t.speedup:.3g}"
        before = "none" if t.reward is None else f"{t.reward:.3f}"
        table.add_row(
            str(t.id), str(t.trajectory_id), t.problem, outcome, speedup, before, "->", f"{c.reward:.3f}"
        )
    return table
