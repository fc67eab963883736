"""The stages as child processes: started, watched, restarted, stopped. Knows nothing of what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ERROR_PREFIX = "Error: "
CRASHES = 3
WINDOW_S = 300.0
"""A stage that ends with an error of its own more often than CRASHES times in WINDOW_S is not started again."""


@dataclass
class Child:
    """One stage. Its output goes to `log`, appended over restarts."""

    stage: str
    arguments: Sequence[str]
    log: Path
    cores: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    deaths: deque[float] = field(default_factory=deque)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kpipe", self.stage, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C is the supervisor's to answer
            )

    def _environment(self) -> Mapping[str, str]:
        cores = ",".join(str(c) for c in sorted(self.cores))
        return {
            **os.environ,
            **self.environment,
            "KPIPE_SUPERVISOR": str(os.getpid()),
            "KPIPE_CPUS": cores,
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def exit_code(self) -> int | None:
        return self.process.poll() if self.process else None

    def may_restart(self) -> bool:
        """False when the stage crashed too often. One that was killed from outside is always started again."""
        if self.exit_code is not None and self.exit_code < 0:
            return True
        now = time.monotonic()
        self.deaths.append(now)
        while self.deaths and now - self.deaths[0] > WINDOW_S:
            self.deaths.popleft()
        return len(self.deaths) <= CRASHES

    def send(self, number: signal.Signals) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """The stage and everything that it started."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_words(self, lines: int = 6) -> str:
        """The end of the log."""
        return "\n".join(self._log_lines()[-lines:])

    def error(self) -> tuple[str, str] | None:
        """Message and fix that the stage printed when it gave up, if it did."""
        lines = self._log_lines()
        for i in range(len(lines) - 1, -1, -1):
            if lines[i].startswith(ERROR_PREFIX):
                return lines[i].removeprefix(ERROR_PREFIX), " ".join(line.strip() for line in lines[i + 1 :])
        return None

    def _log_lines(self) -> list[str]:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return []


def die_with_supervisor() -> None:
    """Called by a stage: when `kpipe run` is killed outright, its stages must not run on unseen."""
    parent = os.environ.get("KPIPE_SUPERVISOR")
    if not parent or not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(0)


def cores_from_environment() -> frozenset[int]:
    """The cores that the supervisor leaves to this stage; empty means any."""
    return frozenset(int(c) for c in os.environ.get("KPIPE_CPUS", "").split(",") if c)
