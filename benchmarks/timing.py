"""Is a kernel that is its own reference timed as 1.00? Over the built-in problems.

    python benchmarks/timing.py --repeats 3 --busy 1

Prints one line per problem; fails if the median of any is off by more than 3 %.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome
from kpipe.evaluate.judge import Judge
from kpipe.problems import builtin

ALLOWED = 0.03


def as_kernel(reference: str) -> str:
    """The reference, under the name that a kernel has."""
    return reference.replace("class Model(", "class ModelNew(")


def burn(core: int) -> None:
    """Keep a core busy with work that also uses the caches."""
    os.sched_setaffinity(0, {core})
    data = bytearray(1 << 22)
    while True:
        data[:] = bytes(data)


async def measure(repeats: int, names: list[str]) -> list[float]:
    """Print a table; the median ratio of each problem."""
    medians = []
    print("problem                ratio  lowest highest        interval       ms  slot s")
    async with Judge(EvaluateConfig()) as judge:
        for problem in builtin():
            if names and problem.name not in names:
                continue
            verdicts = [await judge.judge(problem.source, as_kernel(problem.source)) for _ in range(repeats)]
            bad = [v for v in verdicts if v.outcome is not Outcome.CORRECT]
            if bad:
                raise SystemExit(f"{problem.name}: {bad[0].outcome}: {bad[0].log}")
            ratios = [v.speedup for v in verdicts if v.speedup]
            low, high = (
                statistics.median(getattr(v, f"speedup_{end}") for v in verdicts) for end in ("low", "high")
            )
            medians.append(statistics.median(ratios))
            slot = statistics.median(v.detail["slot_s"] for v in verdicts)
            print(
                f"{problem.name:20s} {medians[-1]:7.3f} {min(ratios):7.3f} {max(ratios):7.3f}"
                f" {f'{low:.3f} .. {high:.3f}':>15s} {verdicts[0].baseline_ms:8.3f} {slot:7.2f}"
            )
    return medians


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="cores to keep busy, the timing core excluded")
    parser.add_argument("names", nargs="*", help="problems; all by default")
    given = parser.parse_args()
    others = sorted(os.sched_getaffinity(0))[:-1][: given.busy]
    burners = [multiprocessing.Process(target=burn, args=(core,), daemon=True) for core in others]
    for process in burners:
        process.start()
    try:
        medians = asyncio.run(measure(given.repeats, given.names))
    finally:
        for process in burners:
            process.kill()
    worst = max(abs(m - 1) for m in medians)
    print(f"median ratio {statistics.median(medians):.3f}, worst problem off by {worst:.1%}")
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
