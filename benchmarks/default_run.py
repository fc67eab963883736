"""The default run over several seeds, and its control: does the policy learn, how long, in how much memory?

    python benchmarks/default_run.py --seeds 10 --control 1 --out results/

Every run gets its own directory and database and the build cache of its own, so that none profits from another.
Prints a Markdown table; `--out` keeps the databases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

from kpipe.run.summary import rise
from kpipe.store import inspect, runs
from kpipe.store.database import Database

MIB = 1024 * 1024


class PeakMemory(threading.Thread):
    """The largest proportional set size (PSS) of a process and its descendants, sampled twice a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.done = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            self.peak = max(self.peak, sum(pss(p) for p in tree(self.pid)))


def tree(root: int) -> list[int]:
    """`root` and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def one(directory: Path, seed: int, extra: list[str]) -> dict[str, object]:
    """Run the default in `directory` and read the result from its database."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "kpipe", "run", "--set", f"seed={seed}"]
    command += ["--set", f"evaluate.cache_dir={directory / 'cache'}"]
    for text in extra:
        command += ["--set", text]
    started = time.monotonic()
    with (directory / "output.txt").open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, stdout=out, stderr=subprocess.STDOUT)
        memory = PeakMemory(process.pid)
        memory.start()
        code = process.wait()
    memory.done.set()
    seconds = time.monotonic() - started
    if code:
        raise SystemExit(f"seed {seed} ended with {code}: see {directory / 'output.txt'}")
    return {
        "seed": seed,
        "extra": extra,
        "seconds": seconds,
        "peak_mib": memory.peak / MIB,
        **measured(directory),
    }


def measured(directory: Path) -> dict[str, object]:
    db = Database.open(f"sqlite:///{directory / 'kpipe.db'}")
    try:
        run = db.read(runs.get, "default")
        assert run is not None
        rewards = rise(db.read(inspect.rewards_by_step, run.id))
        speedups = rise(db.read(inspect.best_speedups_by_step, run.id))
        facts = db.read(inspect.progress, run.id)
    finally:
        db.close()
    assert rewards is not None
    assert speedups is not None
    return {
        "reward": [rewards.first.value, rewards.last.value],
        "reward_ci": [[rewards.first.low, rewards.first.high], [rewards.last.low, rewards.last.high]],
        "p": rewards.p,
        "best": [speedups.first.value, speedups.last.value],
        "turns": facts["turns"],
        "evaluations": facts["done"],
    }


def row(r: dict) -> str:  # type: ignore[type-arg]
    name = f"{r['seed']}" + (f" ({', '.join(r['extra'])})" if r["extra"] else "")
    ci = [f"[{low:.2f}, {high:.2f}]" for low, high in r["reward_ci"]]
    p = "-" if r["p"] is None else f"{r['p']:.4f}"
    return (
        f"| {name} | {r['reward'][0]:.2f} {ci[0]} -> {r['reward'][1]:.2f} {ci[1]} | x{r['reward'][1] / r['reward'][0]:.2f} "
        f"| {p} | {r['best'][0]:.2f} -> {r['best'][1]:.2f} | x{r['best'][1] / r['best'][0]:.2f} "
        f"| {r['evaluations']} | {r['seconds']:.0f} | {r['peak_mib'] / 1024:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--control", type=int, default=1, help="runs with learning rate 0")
    parser.add_argument("--set", action="append", default=[], help="as for kpipe run")
    parser.add_argument("--out", type=Path, help="keep databases and results here")
    a = parser.parse_args()
    root = a.out or Path(tempfile.mkdtemp(prefix="kpipe-bench-"))
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}, Python {platform.python_version()}"
    )
    print(
        "| seed | mean reward, first -> last fifth | | p | mean best speedup | | kernels | seconds | peak GiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    jobs = [(seed, a.set) for seed in range(a.first_seed, a.first_seed + a.seeds)]
    jobs += [(seed, [*a.set, "train.learning_rate=0"]) for seed in range(a.control)]
    results = []
    for seed, extra in jobs:
        name = f"seed-{seed}" + ("-control" if "train.learning_rate=0" in extra else "")
        shutil.rmtree(root / name, ignore_errors=True)
        results.append(one((root / name).resolve(), seed, extra))
        print(row(results[-1]), flush=True)
        (root / "results.json").write_text(json.dumps(results, indent=2))
        shutil.rmtree(root / name / "cache", ignore_errors=True)
    if a.out is None:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
