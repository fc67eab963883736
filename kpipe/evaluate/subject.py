"""The oracle's grip on a child: freeze it, let it run, ask it something, never believe it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from kpipe.evaluate import wire

_SCHEDULER_CLOCK = 2  # with the complement of a pid above it: clock_getcpuclockid(3)


class Failure(Exception):
    """The child gave no answer."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject


class Gone(Failure):
    """It died, or answered with something that is no message."""


class TooSlow(Failure):
    """It did not answer in time."""


class Subject:
    """One child. Times in seconds; `deadline` by time.monotonic()."""

    def __init__(self, pid: int, handle: int, runs: socket.socket, deadline: float) -> None:
        self.pid, self.handle, self.runs, self.deadline = pid, handle, runs, deadline
        self._stat = -1
        with contextlib.suppress(OSError):  # dead already: the first request will tell
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(runs, select.POLLIN)

    def close(self) -> None:
        self.runs.close()
        os.close(self.handle)
        if self._stat >= 0:
            os.close(self._stat)

    def pin(self, core: int) -> None:
        """Move all its threads to one core; it cannot move back."""
        try:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                os.sched_setaffinity(int(task), {core})
        except OSError:
            raise Gone(self) from None

    def ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises Gone or TooSlow."""
        try:
            wire.send(self.runs, message, fds)
            self._wait()
            answer, unexpected = wire.receive(self.runs)
        except (wire.Closed, wire.Malformed):
            raise Gone(self) from None
        wire.close_all(unexpected)
        return answer

    def timed(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> tuple[float, dict[str, Any]]:
        """Thaw it, ask, freeze it: the seconds of processor time that all its threads took, and the answer.

        The scheduler's account, unlike the time of day, leaves out what other processes did meanwhile.
        """
        start = self._processor_time()
        self._signal(signal.SIGCONT)
        answer = self.ask(message, fds)
        self.freeze()
        return self._processor_time() - start, answer

    def freeze(self) -> None:
        """Stop it, and return when no thread of it runs any more."""
        self._signal(signal.SIGSTOP)
        while not self._stopped():
            os.sched_yield()

    def _processor_time(self) -> float:
        try:
            return time.clock_gettime_ns(~self.pid << 3 | _SCHEDULER_CLOCK) / 1e9
        except OSError:
            raise Gone(self) from None

    def _stopped(self) -> bool:
        """From /proc/PID/stat, fields 3 and 20 of proc(5): the state's letter and the number of threads."""
        try:
            fields = os.pread(self._stat, 1024, 0).rpartition(b") ")[2].split()
            states = {fields[0]}
            if fields[0] == b"T" and fields[17] != b"1":
                states = {_state(self.pid, task) for task in os.listdir(f"/proc/{self.pid}/task")}
        except OSError:
            raise Gone(self) from None
        if states & {b"Z", b"X"}:
            raise Gone(self)
        return states <= {b"T", b""}

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.handle, number)
        except ProcessLookupError:
            raise Gone(self) from None

    def _wait(self) -> None:
        left = self.deadline - time.monotonic()
        if not self._poll.poll(max(0.0, left) * 1000):
            raise TooSlow(self)


def _state(pid: int, task: str) -> bytes:
    """Its letter as in ps, or nothing for a thread that has just ended."""
    try:
        with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return b""
