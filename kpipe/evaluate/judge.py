"""Judge one kernel: fork a child, load, build, check, time, and say what happened. Needs no database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import EvaluatorError
from kpipe.evaluate.build import BuildRequest, BuildResult, build_module
from kpipe.evaluate.build_cache import BuildCache
from kpipe.evaluate.evidence import tidy
from kpipe.evaluate.loading import Line
from kpipe.evaluate.processes import Broken, Child, Helper, Oracle, Zygote

EXIT_S = 1.0
"""How long the end of a process may take to become known, once its sockets are closed."""
MAX_PRINTED = 800
H = TypeVar("H", bound=Helper)


class Judge:
    """Judges several kernels at once, of which one is on the device. Use with ``async with``.

    The last core that this process may use belongs to the clock; everything else runs on the others.
    """

    def __init__(self, config: EvaluateConfig, cache: BuildCache | None = None) -> None:
        self.config = config
        self.cache = cache or BuildCache(cache_dir(config), config.cache_mb)
        cores = sorted(os.sched_getaffinity(0))
        self.timing_core = cores[-1] if len(cores) > 1 else None
        self.other_cores = cores[:-1] or cores
        self.builders = config.builders or len(self.other_cores)
        self._threads = ThreadPoolExecutor(
            self.builders, "kpipe-build", os.sched_setaffinity, (0, self.other_cores)
        )
        self._slot = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._zygote: Zygote | None = None
        self._oracle: Oracle | None = None
        self.sandbox = ""

    async def __aenter__(self) -> Judge:
        try:
            await self._helpers()
        except BaseException:
            self._close_helpers()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close_helpers()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def judge(self, reference: str, kernel: str, *, seeds: Mapping[str, int] | None = None) -> Verdict:
        """Never raises for what a kernel does; INFRA when nothing can be said about it.

        `seeds` of an earlier verdict (its detail["seeds"]) give the kernel the same inputs again.
        """
        start = time.monotonic()
        evaluation = Evaluation(
            self,
            reference.encode(errors="surrogatepass"),
            kernel.encode(errors="surrogatepass"),
            seeds,
        )
        try:
            verdict = await evaluation.run()
        except Broken as broken:
            verdict = {"outcome": Outcome.INFRA, "log": str(broken), "detail": {}}
        finally:
            await evaluation.close()
        return Verdict(
            outcome=Outcome(verdict["outcome"]),
            build_s=evaluation.build_s,
            run_s=max(0.0, time.monotonic() - start - evaluation.build_s - evaluation.waited_s),
            detail={**verdict["detail"], "sandbox": self.sandbox},
            log=tidy(verdict["log"]),
            time_ms=verdict.get("time_ms"),
            baseline_ms=verdict.get("baseline_ms"),
            speedup=verdict.get("speedup"),
            speedup_low=verdict.get("speedup_low"),
            speedup_high=verdict.get("speedup_high"),
        )

    async def fork(self, name: str, source: bytes) -> Child:
        zygote, _ = await self._helpers()
        return await zygote.fork(name, source, self.config, [str(self.cache.directory)])

    async def build(self, request: BuildRequest) -> BuildResult:
        """On a thread of the builders. A build service that fails is Broken."""

        def work() -> BuildResult:
            return build_module(request, cache=self.cache, timeout_s=self.config.build_timeout_s)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (OSError, EvaluatorError) as error:
            raise Broken(f"a build could not be made: {error}") from None

    @contextlib.asynccontextmanager
    async def device(self) -> AsyncIterator[Oracle]:
        """The oracle, alone; its slot is the device."""
        async with self._slot:
            _, oracle = await self._helpers()
            try:
                yield oracle
            except asyncio.CancelledError:
                oracle.close()  # it is in the middle of something that nobody wants any more
                raise

    async def _helpers(self) -> tuple[Zygote, Oracle]:
        """Both helpers, started again if they died. Raises Broken."""
        async with self._starting:
            if self._zygote is None or not self._zygote.alive:
                self._zygote = _replaced(self._zygote, Zygote(self.other_cores))
            if self._oracle is None or not self._oracle.alive:
                self._oracle = _replaced(self._oracle, Oracle(self.config, self.timing_core))
            self.sandbox = (await self._zygote.wait_ready())["sandbox"]
            await self._oracle.wait_ready()
            return self._zygote, self._oracle

    def _close_helpers(self) -> None:
        for helper in (self._zygote, self._oracle):
            if helper is not None:
                helper.close()


class Evaluation:
    """One kernel on its way to a verdict."""

    def __init__(
        self, judge: Judge, reference: bytes, kernel: bytes, seeds: Mapping[str, int] | None = None
    ) -> None:
        self.judge, self.reference, self.kernel, self.seeds = judge, reference, kernel, seeds
        self.lines: list[Line] = []
        self.waited_s = 0.0

    @property
    def build_s(self) -> float:
        return self.lines[0].build_s if self.lines else 0.0

    async def run(self) -> dict[str, Any]:
        """The verdict's fields. Raises Broken."""
        line = await self._open("ModelNew", self.kernel)
        loaded = await line.load()
        if loaded.state == "loaded":
            verdict = await self._check(line)
        elif loaded.state == "failed":
            failed_build = line.failed_build is not None
            outcome = Outcome.COMPILE_ERROR if failed_build else Outcome.LOAD_ERROR
            verdict = {"outcome": outcome, "log": line.failed_build or loaded.log, "detail": {}}
        else:
            outcome = {"oom": Outcome.OOM, "gone": Outcome.CRASH, "timeout": Outcome.TIMEOUT}[loaded.state]
            verdict = {"outcome": outcome, "log": loaded.log, "detail": {"gone": loaded.state == "gone"}}
        return await self._with_exit(verdict, line.child)

    async def close(self) -> None:
        for line in self.lines:
            line.child.kill()
            await line.close()
            line.child.close()

    async def _open(self, name: str, source: bytes) -> Line:
        config = self.judge.config
        child = await self.judge.fork(name, source)
        line = Line(child, self.judge.build, config.run_timeout_s, config.build_timeout_s)
        self.lines.append(line)
        return line

    async def _check(self, line: Line) -> dict[str, Any]:
        """Second phase: the oracle has the word."""
        runner = await self._open("Model", self.reference)
        loaded = await runner.load()
        if loaded.state != "loaded":
            raise Broken(f"the reference cannot be loaded: {tidy(loaded.log)}")
        start = time.monotonic()
        for waiting in (line.child, runner.child):
            waiting.hold()
        async with self.judge.device() as oracle:
            self.waited_s = time.monotonic() - start
            begun = time.monotonic()
            for waiting in (line.child, runner.child):
                waiting.let_go()
            verdict = await oracle.judge(self.reference, line.child, runner.child, line.left_s, self.seeds)
            verdict["detail"]["slot_s"] = round(time.monotonic() - begun, 3)
        return verdict

    async def _with_exit(self, verdict: dict[str, Any], child: Child) -> dict[str, Any]:
        """Add what only the child's end tells: exit status, memory peak, and what it printed."""
        gone = verdict["detail"].pop("gone", False)
        if not gone:
            child.kill()
        try:
            end = await asyncio.wait_for(asyncio.shield(child.exited), EXIT_S)
        except TimeoutError:  # it did not end: it sent something that nobody could read
            child.kill()
            end = await child.exited
            gone = False
            verdict.update(outcome=Outcome.CRASH, log="The process sent something that is no answer.")
        verdict["detail"]["memory_peak_mb"] = end.peak_kb // 1024
        printed = child.output()
        if gone:
            verdict = {**verdict, **_ending(end.status, verdict, printed)}
        if printed.strip() and verdict["outcome"] != Outcome.CORRECT:
            verdict["log"] = f"{verdict['log']}\nPrinted:\n{tidy(printed, MAX_PRINTED)}".strip()
        return verdict


def cache_dir(config: EvaluateConfig) -> Path:
    """Where compiled kernels lie."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else Path.home() / ".cache" / "kpipe"


def _replaced(old: H | None, new: H) -> H:
    if old is not None:
        old.close()
    return new


def _ending(status: int, verdict: dict[str, Any], printed: str) -> dict[str, Any]:
    """What the end of a process says: its outcome, evidence and a sentence."""
    if status >= 0:
        detail = {**verdict["detail"], "exit_code": status}
        return {
            "outcome": Outcome.CRASH,
            "detail": detail,
            "log": f"The process ended itself (exit code {status}).",
        }
    name = signal.Signals(-status).name
    detail = {**verdict["detail"], "signal": name}
    if name == "SIGXCPU":
        return {"outcome": Outcome.TIMEOUT, "detail": detail, "log": "The kernel used up its processor time."}
    if name == "SIGKILL" or "bad_alloc" in printed:
        return {"outcome": Outcome.OOM, "detail": detail, "log": f"Out of memory ({name})."}
    hint = " Inputs of timed calls are read-only." if name == "SIGSEGV" else ""
    return {"outcome": Outcome.CRASH, "detail": detail, "log": f"The process was ended by {name}.{hint}"}
