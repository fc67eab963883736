"""A benchmark as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kpipe.bench.figures import Comparison, Figure, Samples, by_problem, compare, figures
from kpipe.domain.stats import Interval
from kpipe.store.records import Episode


@dataclass(frozen=True, slots=True)
class Result:
    """One version's episodes; `label` names it, `run` is where they are stored."""

    label: str
    run: str
    episodes: Sequence[Episode]

    @property
    def samples(self) -> list[Samples]:
        return by_problem(self.episodes)

    @property
    def left_out(self) -> int:
        return len(self.episodes) - sum(len(s.speedups) for s in self.samples)


def markdown(results: Sequence[Result], about: str) -> str:
    """Tables of figures and problems; with two results, the paired test."""
    measured = [figures(r.samples) for r in results]
    lines = [f"# Benchmark: {', '.join(r.label for r in results)}", "", about, ""]
    head = ["figure", *(r.label for r in results)]
    names = list(dict.fromkeys(f.name for table in measured for f in table))
    rows = [[name, *(_shown(table, name) for table in measured)] for name in names]
    lines += [*_table(head, rows), ""]
    if len(results) == 2:
        lines += ["## Paired comparison", "", *_table(*_compared(results)), ""]
    lines += ["## Best speedup by problem", "", *_table(*_problems(results)), ""]
    if left := sum(r.left_out for r in results):
        lines += [
            f"{left} samples are left out: this machine could not judge them, or a prompt was too long.",
            "",
        ]
    lines += [
        "Speedups are against PyTorch eager on the machine that evaluated; a torch.compile baseline is not measured.",
        "Intervals: 95 %, bootstrap over problems. best@k: a sample that is not faster counts as 1.0.",
        f"Stored as: {', '.join(f'run {r.run!r}' for r in results)}.",
    ]
    return "\n".join(lines) + "\n"


def as_json(result: Result, others: Sequence[Comparison] = ()) -> dict[str, Any]:
    return {
        "label": result.label,
        "run": result.run,
        "problems": {s.problem: list(s.speedups) for s in result.samples},
        "left_out": result.left_out,
        "figures": {f.name: _plain(f) for f in figures(result.samples)},
        "compared": [{"figure": c.name, "first": c.first, "second": c.second, "p": c.p} for c in others],
    }


def comparison(results: Sequence[Result]) -> list[Comparison]:
    return compare(results[0].samples, results[1].samples) if len(results) == 2 else []


def _plain(figure: Figure) -> dict[str, float] | None:
    i = figure.interval
    return None if i is None else {"value": i.value, "low": i.low, "high": i.high}


def _shown(table: Sequence[Figure], name: str) -> str:
    i: Interval | None = next((f.interval for f in table if f.name == name), None)
    return "-" if i is None else f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]"


def _compared(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    rows = [[c.name, f"{c.first:.3f}", f"{c.second:.3f}", f"{c.p:.3g}"] for c in comparison(results)]
    return ["figure", *(r.label for r in results), "p (paired, two-sided)"], rows


def _problems(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    best = [{s.problem: s for s in r.samples} for r in results]
    names = list(dict.fromkeys(name for side in best for name in side))
    return ["problem", *(r.label for r in results)], [
        [n, *(_best(side.get(n)) for side in best)] for n in names
    ]


def _best(samples: Samples | None) -> str:
    correct = [x for x in samples.speedups if x is not None] if samples else []
    if samples is None:
        return "-"
    of = f"{len(correct)}/{len(samples.speedups)} correct"
    return f"{max(correct):.3f} ({of})" if correct else f"- ({of})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
