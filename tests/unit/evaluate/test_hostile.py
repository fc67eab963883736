"""Kernels that go for the machinery: their neighbours, the time limits, the channels, the builders."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from evaluating import CACHE, source

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome
from kpipe.evaluate import loading, sandbox
from kpipe.evaluate.judge import Judge

pytestmark = pytest.mark.asyncio(loop_scope="module")
confined = pytest.mark.skipif(sandbox.level() == "none", reason="this machine cannot confine processes")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[Judge]:
    config = EvaluateConfig(cache_dir=str(CACHE), run_timeout_s=5.0, memory_mb=1024, timing_budget_s=0.05)
    async with Judge(config) as judge:
        yield judge


def doing(*lines: str) -> str:
    """The correct kernel, whose module runs these lines first."""
    return "\n".join(lines) + "\n" + source("correct")


@confined
@pytest.mark.parametrize(
    "attack",
    [
        "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CPU, (1, 1))",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.sched_setaffinity(0, {0})",
        "import os; os.sched_setaffinity(os.getppid(), {0})",
        "import os; os.nice(-1)",
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)",
        "import ctypes; 1 // (ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0)",  # outlive the zygote
        "import socket; socket.socket()",
    ],
)
async def test_nobody_else_can_be_touched(judge: Judge, attack: str) -> None:
    verdict = await judge.judge(source("reference"), doing(attack))
    assert verdict.outcome is Outcome.LOAD_ERROR, verdict


@confined
async def test_a_confined_process_has_no_capabilities(judge: Judge) -> None:
    lines = (
        "import ctypes, struct",
        "header, data = struct.pack('Ii', 0x20080522, 0), ctypes.create_string_buffer(24)",
        "ctypes.CDLL(None).capget(header, data)",
        "words = struct.unpack('6I', data.raw)",
        "print('effective', words[0], words[3])",
        "1 / 0",
    )
    verdict = await judge.judge(source("reference"), doing(*lines))
    assert "effective 0 0" in verdict.log, verdict.log


@pytest.mark.parametrize("place", ["load", "forward"])
async def test_writing_on_every_descriptor_is_a_crash(judge: Judge, place: str) -> None:
    lines = [
        "import os",
        "for fd in range(3, 200):",
        "    try: os.write(fd, b'D' * 40)",
        "    except OSError: pass",
    ]
    kernel = source("correct")
    if place == "load":
        kernel = doing(*lines)
    else:
        head = "    def forward(self, x):\n"
        assert head in kernel
        kernel = kernel.replace(head, head + "".join(f"        {line}\n" for line in lines))
    verdict = await judge.judge(source("reference"), kernel)
    assert verdict.outcome is Outcome.CRASH, verdict
    assert "no answer" in verdict.log


async def test_a_module_cannot_keep_the_builders_for_itself(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_BUILDS", 2)
    verdict = await judge.judge(
        source("reference"),
        doing(
            "from torch.utils.cpp_extension import load_inline",
            "for i in range(1000):",
            "    try: load_inline(name=f'n{i}', cpp_sources='int f() { return + ; }', functions=['f'])",
            "    except RuntimeError as error: last = str(error)",
            "1 / 0 if 'too many builds' in last else None",
        ),
    )
    assert verdict.outcome is Outcome.COMPILE_ERROR, verdict
    assert "too many builds" in verdict.log


async def test_arguments_that_are_no_text_are_not_built(judge: Judge) -> None:
    call = "load_inline(name='x', cpp_sources=object(), functions=['f'])"
    verdict = await judge.judge(
        source("reference"), doing("from torch.utils.cpp_extension import load_inline", call)
    )
    assert verdict.outcome is Outcome.LOAD_ERROR, verdict
    assert "TypeError" in verdict.log


async def test_a_thread_left_behind_costs_the_kernel_and_nobody_else(judge: Judge) -> None:
    lines = ["import threading", "def spin():", "    while True: pass"]
    verdict = await judge.judge(
        source("reference"), doing(*lines, "threading.Thread(target=spin, daemon=True).start()")
    )
    assert verdict.outcome is Outcome.CORRECT, verdict
    assert verdict.speedup_high < 1.05


async def test_a_slow_reference_does_not_use_up_the_kernels_time(judge: Judge) -> None:
    reference = source("reference")
    head = "    def forward(self, x):\n"
    assert head in reference
    work = (
        "        import time; end = time.thread_time() + 0.3\n        while time.thread_time() < end: pass\n"
    )
    slow = reference.replace(head, head + work)
    verdict = await judge.judge(slow, source("correct"))
    assert verdict.outcome is Outcome.CORRECT, verdict


async def test_an_interval_rests_on_six_ratios_however_small_the_budget(judge: Judge) -> None:
    verdict = await judge.judge(source("reference"), source("correct"))
    assert verdict.detail["quads"] >= 6


async def test_a_traceback_shows_the_kernels_lines_only(judge: Judge) -> None:
    verdict = await judge.judge(source("reference"), source("raises"))
    assert "kernel.py" in verdict.log
    assert "_call_impl" not in verdict.log
