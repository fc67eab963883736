"""The worker's side of its two helpers, the zygote and the oracle: start, talk, notice their death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpipe.config import EvaluateConfig
from kpipe.evaluate import wire
from kpipe.evaluate.zygote import ENVIRONMENT

START_S = 120.0
PRINTED_BYTES = 65536
"""A pipe's size: what a kernel prints beyond that is lost."""


class Broken(Exception):
    """A helper died. Whatever it was doing says nothing about any kernel."""


@dataclass(slots=True)
class Exit:
    """`status` is an exit code, or minus the signal; `peak_kb` the most memory that was resident."""

    status: int
    peak_kb: int


class Helper:
    """A child process and a socket of packets. After its death every call raises Broken."""

    def __init__(self, command: Sequence[str], *, environment: dict[str, str] | None = None) -> None:
        self.sock, other = wire.pair()
        number = str(other.fileno())
        self.process = subprocess.Popen(
            [part.replace("{fd}", number) for part in command],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        other.close()
        self.sock.setblocking(False)
        self.alive = True
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    async def wait_ready(self) -> dict[str, Any]:
        """What it says about itself. Raises Broken."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.ready), START_S)
        except TimeoutError:
            self.close()
            raise Broken("a helper process did not start") from None

    def send(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        try:
            wire.send(self.sock, message, fds)
        except (wire.Closed, OSError):
            self._died()
            raise Broken("a helper process is gone") from None

    def close(self) -> None:
        """It ends when its socket closes; make sure of it."""
        self._died()
        self.process.kill()
        self.process.wait()

    def received(self, message: dict[str, Any], fds: list[int]) -> None:
        raise NotImplementedError

    def lost(self, error: Broken) -> None:
        raise NotImplementedError

    def _readable(self) -> None:
        try:
            message, fds = wire.receive(self.sock)
        except BlockingIOError:
            return
        except (wire.Closed, wire.Malformed):
            self._died()
            return
        if "ready" in message:
            self.ready.set_result(message)
        else:
            self.received(message, fds)

    def _died(self) -> None:
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()
        error = Broken(f"the {type(self).__name__.lower()} process died")
        if not self.ready.done():
            self.ready.set_exception(error)
        self.lost(error)


class Child:
    """A forked process that loads a module. The oracle gets `runs` and `handle`."""

    def __init__(self, builds: socket.socket, runs: socket.socket, printed: int) -> None:
        self.builds, self.runs, self.printed = builds, runs, printed
        self.pid, self.handle = 0, -1
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.exited.add_done_callback(lambda f: f.exception())  # nobody may be waiting

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def hold(self) -> None:
        """Let nothing that it left running use the machine while it waits."""
        self._signal(signal.SIGSTOP)

    def let_go(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    def output(self) -> str:
        """What it printed so far, read once."""
        try:
            return os.read(self.printed, PRINTED_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""

    def close(self) -> None:
        self.kill()
        self.builds.close()
        self.runs.close()
        for fd in (self.printed, self.handle):
            if fd >= 0:
                os.close(fd)
        self.printed = self.handle = -1


class Zygote(Helper):
    """Forks children; knows how each ended."""

    def __init__(self, cores: Sequence[int]) -> None:
        script = str(Path(__file__).with_name("zygote.py"))
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        command = [sys.executable, "-I", script, "{fd}", json.dumps(list(cores)), path]
        super().__init__(command, environment=ENVIRONMENT)
        self._starting: deque[tuple[Child, asyncio.Future[None]]] = deque()
        self._running: dict[int, Child] = {}

    async def fork(self, name: str, source: bytes, config: EvaluateConfig, readable: Sequence[str]) -> Child:
        """A process that loads `source` and will construct its class `name`. Raises Broken."""
        builds, its_builds = socket.socketpair()
        runs, its_runs = wire.pair()
        printed, its_printed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        child = Child(builds, runs, printed)
        file = wire.memory_file("source", source)
        request = {
            "name": name,
            "memory_bytes": config.memory_mb << 20,
            "cpu_s": int(config.run_timeout_s) * 2 + 10,
            "readable": list(readable),
        }
        try:
            self.send(request, (file, its_builds.fileno(), its_runs.fileno(), its_printed))
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._starting.append((child, started))
            await started
        except BaseException:
            child.close()
            raise
        finally:
            wire.close_all([file, its_printed])
            its_builds.close()
            its_runs.close()
        return child

    def received(self, message: dict[str, Any], fds: list[int]) -> None:
        if "forked" in message:
            child, started = self._starting.popleft()
            child.pid, (child.handle,) = message["forked"], fds
            self._running[child.pid] = child
            if started.cancelled():
                child.close()
            else:
                started.set_result(None)
        elif ended := self._running.pop(message["exited"], None):
            ended.exited.set_result(Exit(message["status"], message["peak_kb"]))

    def lost(self, error: Broken) -> None:
        for _, started in self._starting:
            if not started.done():
                started.set_exception(error)
        for child in self._running.values():
            child.exited.set_exception(error)


class Oracle(Helper):
    """Judges one loaded kernel after the other."""

    def __init__(self, config: EvaluateConfig, core: int | None) -> None:
        command = [
            sys.executable,
            "-m",
            "kpipe.evaluate.oracle",
            "{fd}",
            json.dumps(core),
            config.model_dump_json(),
        ]
        environment = {**os.environ, **ENVIRONMENT, "PATH": os.environ.get("PATH", ENVIRONMENT["PATH"])}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        super().__init__(command, environment=environment)
        self._asked: asyncio.Future[dict[str, Any]] | None = None

    async def judge(
        self,
        reference: bytes,
        kernel: Child,
        runner: Child,
        left_s: float,
        seeds: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """One at a time; fresh inputs, unless `seeds` of an earlier verdict are given. Raises Broken."""
        file = wire.memory_file("reference", reference)
        try:
            request = {
                "kernel": kernel.pid,
                "runner": runner.pid,
                "left_s": left_s,
                "seeds": dict(seeds) if seeds else None,
            }
            handles = (kernel.runs.fileno(), kernel.handle, runner.runs.fileno(), runner.handle)
            self.send(request, (file, *handles))
            self._asked = asyncio.get_running_loop().create_future()
            return await self._asked
        finally:
            os.close(file)

    def received(self, message: dict[str, Any], fds: list[int]) -> None:
        if self._asked and not self._asked.done():
            self._asked.set_result(message)

    def lost(self, error: Broken) -> None:
        if self._asked and not self._asked.done():
            self._asked.set_exception(error)
