"""Stage 3: wait for complete groups, learn from them, publish the next policy version.

An update is committed once: its checkpoint gets its name by a rename, then one transaction records the
update, its samples and the new policy version. A trainer that is killed before that repeats the update
from the same groups, bit for bit on the CPU; one that is killed after it goes on with the next.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

from kpipe import __version__
from kpipe.config import Config, from_json
from kpipe.errors import TrainError, UsageError
from kpipe.policy.files import digest as digest_of
from kpipe.policy.owner import claim
from kpipe.store import policies, runs, training, workers
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run, Sample
from kpipe.train import checkpoint
from kpipe.train.alarms import EARLY, alarms
from kpipe.train.checkpoint import TrainerState
from kpipe.train.checks import TokenizerCheck
from kpipe.train.folder import CheckpointFolder
from kpipe.train.learner import Learner
from kpipe.train.report import cost, environment, step_line
from kpipe.train.sinks import Sinks
from kpipe.train.step import make_update, turns_of
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Stopped

log = logging.getLogger("kpipe.train")
POLL_S = 0.1
BEAT_S = 2.0
FEWEST_WEIGHTS = 2
"""Versions kept beyond max_off_policy_steps: the newest, and one that a collector is still loading."""


def main(db_url: str, run_name: str) -> None:
    """Train until train.max_steps updates are committed. SIGTERM or SIGINT abandons the current update.

    Raises KpipeError.
    """
    db = Database.open(db_url)
    try:
        run = db.read(runs.get, run_name)
        if run is None:
            raise UsageError(
                f"There is no run {run_name!r} in this database.", "`kpipe run --run NAME` starts one."
            )
        config = from_json(run.config)
        torch.set_num_threads(config.train.threads or len(os.sched_getaffinity(0)))
        folder = CheckpointFolder(config.output_dir, run.name)
        known = db.read(policies.latest, run.id) is not None
        claim(folder.root, db.read(runs.identity, run.id), known=known)
        with stop_on_signals() as stop, folder.locked():
            Trainer(db, run, config, folder, stop).run_to_end()
    finally:
        db.close()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """The event is set by the first SIGTERM or SIGINT; the second takes its usual course."""
    stop = threading.Event()
    previous: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, previous[number])

    for name in (signal.SIGTERM, signal.SIGINT):
        previous[int(name)] = signal.signal(name, ask)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Trainer:
    """The loop over updates. The caller holds the lock of `folder`; `stop` is asked at every micro-batch."""

    def __init__(
        self, db: Database, run: Run, config: Config, folder: CheckpointFolder, stop: threading.Event
    ) -> None:
        self.db = db
        self.run = run
        self.config = config
        self.folder = folder
        self.stop = stop
        here = (socket.gethostname(), os.getpid(), config.train.device)
        self.worker = db.write(workers.register, "train", *here)
        self.check_tokenizer = TokenizerCheck()
        self.rescoring = 0
        self._last_beat = 0.0

    def run_to_end(self) -> None:
        """Return when train.max_steps updates are committed, or when asked to stop. Raises KpipeError."""
        try:
            latest = self._wait_for_base()
            if latest.step < self.config.train.max_steps:
                latest = self._train_from(latest)
            log.info("all %d updates of run %s are committed", latest.step, self.run.name)
        except Stopped:
            log.info("stopped; what is not committed stays in the database for the next start")

    def _train_from(self, latest: PolicyVersion) -> PolicyVersion:
        learner = self._resume(latest)
        history = self.db.read(training.committed, self.run.id) if self.config.train.sinks else []
        with closing(Sinks(self.config.train.sinks, self.folder.root, self.run, history)) as sinks:
            while latest.step < self.config.train.max_steps:
                watch = Stopwatch(learner.device)
                with watch("wait"):
                    groups = self.wait_for_groups(latest.step)
                latest, metrics = self._update(learner, groups, latest, watch)
                sinks.write(latest.step, metrics)
        return latest

    def _wait_for_base(self) -> PolicyVersion:
        """The newest policy version; the collector makes the first one. Raises Stopped."""
        while (latest := self.db.read(policies.latest, self.run.id)) is None:
            self._pause("waiting for the base policy")
        return latest

    def wait_for_groups(self, step: int) -> list[list[Sample]]:
        """The groups of the next update, oldest first. Raises Stopped."""
        needed, oldest = self.config.collect.groups_per_step, self.config.collect.max_off_policy_steps
        while self.db.read(training.ready, self.run.id, step, oldest) < needed:
            self._pause("waiting for groups")
        self.rescoring = self.db.read(training.last_rescoring)
        return self.db.read(training.take, self.run.id, step, oldest, needed)

    def _pause(self, reason: str) -> None:
        self._beat(reason)
        if self.stop.wait(POLL_S):
            raise Stopped

    def _beat(self, doing: str) -> None:
        """Tell people what goes on, not more often than they can read."""
        if time.monotonic() - self._last_beat >= BEAT_S:
            self.db.write(workers.heartbeat, self.worker, {"doing": doing})
            self._last_beat = time.monotonic()

    def _resume(self, latest: PolicyVersion) -> Learner:
        """Verify and load the newest checkpoint, and clear away what was never committed."""
        for path in self.folder.sweep(latest.step):
            log.warning("%s belongs to no update of this database and was set aside", path)
        versions = self.db.read(policies.list_, self.run.id)
        learner = checkpoint.resume(latest, versions, self.config.train)
        if latest.step > 0:
            log.info("going on after update %d", latest.step)
        return learner

    def _update(
        self, learner: Learner, groups: Sequence[Sequence[Sample]], latest: PolicyVersion, watch: Stopwatch
    ) -> tuple[PolicyVersion, dict[str, Any]]:
        """Learn, write the checkpoint, commit. Raises Stopped before anything is written, or KpipeError.

        Returns the new version and the metrics of the update.
        """
        step = latest.step + 1
        self._beat(f"update {step}")
        turns = self.db.read(turns_of, groups)
        self.check_tokenizer(groups, turns, Path(latest.path))
        made = make_update(
            learner,
            groups,
            turns,
            self.config,
            seed=self.run.seed,
            step=step,
            watch=watch,
            should_stop=self.stop.is_set,
        )
        path, digest = self._save(learner, Path(latest.path), step, watch)
        metrics = {
            **made.metrics,
            **cost(made.learned, watch, learner, self.config.train),
            "environment": environment(self.config, learner.device),
        }
        raised = self._alarms(step, metrics)
        version = self.db.write(
            training.commit_step,
            self.run.id,
            step,
            latest.id,
            (str(path), digest),
            made.batch_hash,
            metrics,
            made.samples,
            self.stale_groups(latest.step),
            raised,
            self.rescoring,
        )
        log.info(step_line(step, self.config.train.max_steps, metrics))
        for message in raised.values():
            log.warning("update %d: %s", step, message)
        self._prune(step)
        return version, metrics

    def _alarms(self, step: int, metrics: dict[str, Any]) -> dict[str, str]:
        """Those that were silent at the update before; `metrics` get the names of all."""
        early = range(1, min(EARLY + 1, step))
        known = self.db.read(training.metrics_of, self.run.id, [*early, step - 1])
        found = alarms(metrics, [known[s] for s in early])
        metrics["alarms"] = sorted(found)
        before = known.get(step - 1, {}).get("alarms", [])
        return {name: message for name, message in found.items() if name not in before}

    def _save(self, learner: Learner, tokenizer_from: Path, step: int, watch: Stopwatch) -> tuple[Path, str]:
        """The finished checkpoint of `step` and its digest. Raises TrainError."""
        state = TrainerState(step, self.run.seed, __version__, torch.__version__)
        try:
            with watch("save"):
                draft = self.folder.begin(step)
                checkpoint.write(draft, learner, tokenizer_from, state)
                made = digest_of(draft)
            with watch("publish"):
                return self.folder.publish(step), made
        except (OSError, SafetensorError) as error:
            raise TrainError(
                f"The checkpoint of update {step} cannot be written to {self.folder.root}: {error}.",
                "Free the disk or check its permissions, and start again: the update is repeated.",
            ) from None

    def stale_groups(self, step: int) -> list[int]:
        """Groups that the update after `step` leaves out for good."""
        oldest = self.config.collect.max_off_policy_steps
        return self.db.read(training.stale_groups, self.run.id, step, oldest)

    def _prune(self, latest: int) -> None:
        """Keep what a resume, the next groups and a curious user need."""
        optimizers = self.config.train.keep_last
        weights = max(optimizers, self.config.collect.max_off_policy_steps + FEWEST_WEIGHTS)
        steps = [v.step for v in self.db.read(policies.list_, self.run.id)]
        every = self.config.train.keep_every
        self.folder.prune(steps, latest=latest, optimizers=optimizers, weights=weights, every=every)
