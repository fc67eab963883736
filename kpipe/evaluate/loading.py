"""The first phase of an evaluation: a child loads its module while the worker builds what it asks for."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from kpipe.evaluate.build import BuildRequest, BuildResult, request_from_call
from kpipe.evaluate.processes import Broken, Child

MAX_FRAME = 32 << 20
MAX_BUILDS = 16
"""Builds of one module; more are refused, and so is one after builds that together took one build's time limit."""
_LENGTH = struct.Struct("<I")
Build = Callable[[BuildRequest], Awaitable[BuildResult]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """How loading ended. `gone`: the process exited, crashed or babbled."""

    state: Literal["loaded", "failed", "oom", "gone", "timeout"]
    log: str = ""


class Line:
    """The stream on which a child says how loading goes. Nothing on it is believed but requests to build.

    It is served for the child's whole life: a model may call `load_inline` when it is constructed.
    """

    def __init__(self, child: Child, build: Build, limit_s: float, build_limit_s: float) -> None:
        self.child, self._build, self._build_limit_s = child, build, build_limit_s
        self.left_s = limit_s
        self.build_s = 0.0
        self._builds = 0
        self.failed_build: str | None = None
        self._served: asyncio.Task[None] | None = None

    async def load(self) -> Loaded:
        """Serve until the module is loaded or not; time spent on builds does not count. Raises Broken."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self.child.builds)
        confined = False
        while True:
            start = time.monotonic()
            try:
                message = await asyncio.wait_for(self._read(), self.left_s)
            except TimeoutError:
                return Loaded("timeout", "The module did not finish loading in time.")
            self.left_s -= time.monotonic() - start
            if message is None:
                if not confined:
                    raise Broken("a child process could not be set up")
                return Loaded("gone")
            if "build" in message:
                await self._answer(message["build"])
            elif "confined" in message:
                confined = True
            elif "loaded" in message:
                self._served = asyncio.create_task(self._serve())
                return Loaded("loaded")
            else:
                return Loaded(
                    "oom" if message.get("error") == "oom" else "failed", str(message.get("log", ""))
                )

    async def close(self) -> None:
        if self._served:
            self._served.cancel()
            await asyncio.gather(self._served, return_exceptions=True)
        if hasattr(self, "_writer"):
            self._writer.close()

    async def _serve(self) -> None:
        while message := await self._read():
            if "build" in message:
                await self._answer(message["build"])

    async def _read(self) -> dict[str, Any] | None:
        """The next frame; None at the end or for anything that is no frame."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if size > MAX_FRAME:
                return None
            message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    async def _answer(self, call: Any) -> None:
        """Build what the child asks for; send it the module's place, or why there is none."""
        start = time.monotonic()
        self._builds += 1
        try:
            if self._builds > MAX_BUILDS or self.build_s > self._build_limit_s:
                raise ValueError("the module asks for too many builds")
            arguments, options = call
            request = request_from_call(list(arguments), dict(options))
        except (ValueError, TypeError) as error:
            self.failed_build = str(error)
            answer = {"log": self.failed_build}
        else:
            result = await self._build(request)
            answer = {"log": result.log}
            if result.ok:
                answer = {"path": str(result.so_path), "name": request.name}
            else:
                self.failed_build = result.log
        self.build_s += time.monotonic() - start
        data = json.dumps(answer).encode()
        self._writer.write(_LENGTH.pack(len(data)) + data)
