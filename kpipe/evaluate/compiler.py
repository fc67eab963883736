"""Run a compiler within limits: of time, memory, file size and output, killed with everything that it started."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from kpipe.evaluate.toolchain import find_toolchain

MEMORY = 6 << 30
FILE_SIZE = 1 << 30
OUTPUT = 1 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """`code` is the exit status, None when it was stopped for its time."""

    code: int | None
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def run(command: list[str], folder: Path, timeout_s: float, *, extra: dict[str, str] | None = None) -> Ran:
    """Run `command` in `folder` without a shell, with a bare environment plus `extra`. Blocking, and thread-safe."""
    deadline = time.monotonic() + timeout_s
    seconds = math.ceil(timeout_s) * 4  # of all its processes' time each; several may run side by side
    limits = [f"--as={MEMORY}", f"--fsize={FILE_SIZE}", f"--cpu={seconds}", "--core=0"]
    process = subprocess.Popen(
        [find_toolchain().prlimit, *limits, "--", *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(folder) | (extra or {}),
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as out:
        output, in_time = _drain(process, out.fileno(), deadline)
    return Ran(process.wait() if in_time else None, output.decode("utf-8", "replace"))


def _drain(process: subprocess.Popen[bytes], out: int, deadline: float) -> tuple[bytes, bool]:
    """The first OUTPUT bytes, read until the process ends; whatever it started is killed then."""
    kept = bytearray()
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(out, select.POLLIN)
        ended = False
        while not ended and (left := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            ended = handle in ready
            if out in ready and not (data := os.read(out, 1 << 16)):
                poll.unregister(out)
            elif out in ready:
                kept += data[: OUTPUT - len(kept)]
    finally:
        os.close(handle)
        _kill(process)
    os.set_blocking(out, False)
    while ended and (data := _read_rest(out)):
        kept += data[: OUTPUT - len(kept)]
    return bytes(kept), ended


def _read_rest(out: int) -> bytes:
    try:
        return os.read(out, 1 << 16)
    except BlockingIOError:
        return b""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group; the leader is not reaped before, so its number cannot belong to somebody else."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """No secrets: what a compiler needs and nothing else."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
    }
