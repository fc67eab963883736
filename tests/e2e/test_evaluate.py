"""`kpipe evaluate` over a real database, its processes killed at the worst moments."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evaluating import CACHE, source

from kpipe.config import Config
from kpipe.domain.harness import HARNESS
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome
from kpipe.store import blobs, catalog, queue, runs, verdicts
from kpipe.store.database import Database
from kpipe.store.records import EvaluationResult

PATIENCE_S = 200.0


class Bench:
    """A database with one problem, and workers on it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'kpipe.db'}"
        self.db = Database.open(self.url, create=True)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.log = folder / "worker.log"
        config = Config.model_validate(
            {"evaluate": {"cache_dir": str(CACHE), "lease_s": 3.0, "run_timeout_s": 8.0}}
        )
        self.db.write(runs.create, "test", config.model_dump(mode="json"), 0, "test")
        problem = Problem("test", 1, "silu", "train", source("reference"))
        self.problem_id, _ = self.db.write(catalog.add, problem)

    def enqueue(self, *kernels: str) -> list[int]:
        def put(conn: object, text: str) -> int:
            return queue.enqueue(conn, self.problem_id, blobs.put(conn, text), HARNESS, "cpu")

        return [self.db.write(put, text) for text in kernels]

    def start(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        code = f"from kpipe.evaluate.worker import main; main({self.url!r}, run_name='test', once={once})"
        with self.log.open("ab") as log:
            worker = subprocess.Popen([sys.executable, "-c", code], stderr=log, stdout=log)
        self.workers.append(worker)
        return worker

    def results(self, ids: list[int]) -> dict[int, EvaluationResult]:
        return self.db.read(verdicts.evaluations, ids)

    def running(self, ids: list[int]) -> bool:
        return any(result.state == "running" for result in self.results(ids).values())

    def finished(self, ids: list[int]) -> bool:
        return all(result.state in ("done", "failed") for result in self.results(ids).values())

    def outcomes(self, ids: list[int]) -> list[Outcome]:
        results = self.results(ids)
        return [results[i].verdict.outcome for i in ids]

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for worker in bench.workers:
        worker.kill()
        worker.wait()
    bench.db.close()


def children(pid: int, word: str = "") -> list[int]:
    """Processes whose parent is `pid` and whose command line contains `word`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and word in (entry / "cmdline").read_text():
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    return [below for child in children(pid) for below in (child, *descendants(child))]


def test_once_empties_the_queue(bench: Bench) -> None:
    names = ["correct", "wrong_value", "segfault", "raises"]
    ids = bench.enqueue(*(source(name) for name in names), "def broken(:")
    assert bench.start(once=True).wait(PATIENCE_S) == 0
    crash, wrong = Outcome.CRASH, Outcome.WRONG_VALUE
    assert bench.outcomes(ids) == [Outcome.CORRECT, wrong, crash, crash, Outcome.LOAD_ERROR]


@pytest.mark.parametrize("helper", ["kpipe.evaluate.oracle", "zygote.py"])
def test_a_killed_helper_costs_no_verdict(bench: Bench, helper: str) -> None:
    ids = bench.enqueue(source("endless"), source("correct"))
    worker = bench.start()
    bench.wait(lambda: bench.running(ids) and bool(children(worker.pid, helper)))
    time.sleep(0.3)  # the endless kernel is in work by now
    (victim,) = children(worker.pid, helper)
    os.kill(victim, signal.SIGKILL)
    bench.wait(lambda: bench.finished(ids))
    assert bench.outcomes(ids) == [Outcome.TIMEOUT, Outcome.CORRECT]
    assert worker.poll() is None


def test_a_killed_worker_leaves_its_job_to_the_next(bench: Bench) -> None:
    ids = bench.enqueue(source("endless"), source("correct"))
    worker = bench.start()
    bench.wait(lambda: bench.running(ids) and bool(descendants(worker.pid)))
    time.sleep(0.3)
    below = descendants(worker.pid)
    worker.kill()
    worker.wait()
    bench.wait(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below))
    assert not bench.finished(ids)
    bench.start()
    bench.wait(lambda: bench.finished(ids))
    assert bench.outcomes(ids) == [Outcome.TIMEOUT, Outcome.CORRECT]


def test_the_first_signal_finishes_what_was_begun(bench: Bench) -> None:
    ids = bench.enqueue(*(source("endless") + f"# {n}" for n in range(6)))
    worker = bench.start()
    bench.wait(lambda: bench.running(ids) and bool(descendants(worker.pid)))
    time.sleep(0.5)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    states = [result.state for result in bench.results(ids).values()]
    assert states.count("running") == 0
    assert 0 < states.count("done") < len(ids)


def test_the_second_signal_gives_all_back(bench: Bench) -> None:
    ids = bench.enqueue(source("endless"))
    worker = bench.start()
    bench.wait(lambda: bench.running(ids) and bool(descendants(worker.pid)))
    time.sleep(0.5)
    for _ in range(2):
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert worker.wait(PATIENCE_S) == 0
    assert [result.state for result in bench.results(ids).values()] == ["queued"]
