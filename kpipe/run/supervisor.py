"""Start the three stages, restart the ones that die, stop them when the last update is committed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kpipe.config import Config
from kpipe.errors import KpipeError, UsageError
from kpipe.run.children import Child
from kpipe.run.setup import Prepared, finished_step
from kpipe.store import events
from kpipe.store.database import Database

POLL_S = 0.25
DRAIN_S = 30.0
USER_ERROR = 2


class Supervisor:
    """`tick` is called about four times a second with the last committed update."""

    def __init__(self, db: Database, db_url: str, prepared: Prepared, tick: Callable[[int], None]) -> None:
        self.db = db
        self.run = prepared.run
        self.config = prepared.config
        self.tick = tick
        self.interrupts = 0
        logs = log_dir(prepared.config, prepared.run.name)
        arguments = ["--run", prepared.run.name]
        where = {"KPIPE_DB": db_url}  # not on the command line: everybody on the machine can read that
        free = cores_beside_the_clock()
        # Strictly on-policy, nothing is timed while an update is made: the trainer may use the clock's core, too.
        alone = prepared.config.collect.max_off_policy_steps == 0
        self.children = [
            Child("evaluate", arguments, logs / "evaluate.log", environment=where),
            Child("collect", arguments, logs / "collect.log", free, where),
            Child("train", arguments, logs / "train.log", frozenset() if alone else free, where),
        ]

    def run_to_end(self) -> bool:
        """True when the run is finished, False when the user stopped it. Raises KpipeError when a stage cannot go on."""
        with only_one(Path(self.config.output_dir) / self.run.name, self.run.name):
            return self._run_to_end()

    def _run_to_end(self) -> bool:
        previous = {n: signal.signal(n, self._interrupted) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            for child in self.children:
                child.start()
            while self.interrupts == 0:
                step = finished_step(self.db, self.run)
                self.tick(step)
                if step >= self.config.train.max_steps:
                    break
                self._watch()
                time.sleep(POLL_S)
            return self._stop()
        finally:
            for child in self.children:
                child.kill()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _watch(self) -> None:
        for child in self.children:
            code = child.exit_code
            if code is None:
                continue
            if code == 0:
                child.start()  # a stage that was told to stop by somebody else; the run is not over
                continue
            self.db.write(
                events.log,
                "stage_died",
                "run",
                self.run.id,
                "supervisor",
                {"stage": child.stage, "code": code},
            )
            if code == USER_ERROR or not child.may_restart():
                raise StageFailed(child)
            child.start()

    def _stop(self) -> bool:
        """Drain; a second interrupt, or DRAIN_S seconds, end it the hard way."""
        done = self.interrupts == 0
        deadline = time.monotonic() + DRAIN_S
        for child in self.children:
            child.send(signal.SIGTERM)
        while any(c.exit_code is None for c in self.children):
            if time.monotonic() > deadline or self.interrupts > 1:
                break
            self.tick(finished_step(self.db, self.run))
            time.sleep(POLL_S)
        return done

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1


class StageFailed(KpipeError):
    """A stage said why it cannot work, or died again and again."""

    def __init__(self, child: Child) -> None:
        after = f"Nothing is lost: then type the same command again. The stage's log is {child.log}."
        said = child.error()
        if said:
            super().__init__(f"The {child.stage} stage stopped: {said[0]}", f"{said[1]} {after}".strip())
        else:
            super().__init__(f"The {child.stage} stage died again and again:\n{child.last_words()}", after)


@contextmanager
def only_one(folder: Path, name: str) -> Iterator[None]:
    """One `kpipe run` of a run at a time; one that was killed leaves no lock. Raises UsageError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".run.lock").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"Another `kpipe run` is at work on run {name!r}.",
                f"Watch it with `kpipe show run {name} --watch`, or stop it first.",
            ) from None
        yield


def log_dir(config: Config, run_name: str) -> Path:
    return Path(config.output_dir) / run_name / "logs"


def cores_beside_the_clock() -> frozenset[int]:
    """Every core but the last, which the evaluator's clock runs on; no restriction on one core."""
    cores = sorted(os.sched_getaffinity(0))
    return frozenset(cores[:-1])
