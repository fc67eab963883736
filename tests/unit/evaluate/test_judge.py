"""Real processes: what kernels do, and what the judge says about it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from evaluating import CACHE, source

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.evaluate.judge import Judge

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge() -> AsyncIterator[Judge]:
    config = EvaluateConfig(
        cache_dir=str(CACHE), run_timeout_s=6.0, memory_mb=1024, timing_budget_s=0.3, build_timeout_s=250.0
    )
    async with Judge(config) as judge:
        yield judge


async def verdict_on(judge: Judge, name: str) -> Verdict:
    return await judge.judge(source("reference"), source(name))


async def test_a_correct_kernel_is_timed(judge: Judge) -> None:
    verdict = await verdict_on(judge, "correct")
    assert verdict.outcome is Outcome.CORRECT, verdict
    assert verdict.speedup_low <= verdict.speedup <= verdict.speedup_high
    assert verdict.time_ms > 0
    assert verdict.baseline_ms > 0
    assert verdict.detail["parameters"] == "loaded"
    assert verdict.detail["verified"] > 0
    assert set(verdict.detail["seeds"]) == {"model", "inputs"}


async def test_six_times_the_work_is_slower(judge: Judge) -> None:
    verdict = await verdict_on(judge, "slow")
    assert verdict.outcome is Outcome.CORRECT
    assert verdict.speedup_high < 0.7


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("wrong_value", Outcome.WRONG_VALUE, "index [3, 5]"),
        ("wrong_shape", Outcome.WRONG_SHAPE, "[64, 255]"),
        ("wrong_dtype", Outcome.WRONG_DTYPE, "float64"),
        ("returns_text", Outcome.WRONG_DTYPE, "returned str"),
        ("returns_two", Outcome.WRONG_SHAPE, "2 tensors"),
        ("segfault", Outcome.CRASH, "SIGSEGV"),
        ("abort", Outcome.CRASH, "SIGABRT"),
        ("exits", Outcome.CRASH, "exit code 0"),
        ("endless", Outcome.TIMEOUT, "in time"),
        ("memory_bomb", Outcome.OOM, "allocate memory"),
        ("mutates", Outcome.WRONG_VALUE, "changed its input 0"),
        ("random_result", Outcome.NONDETERMINISTIC, "differ"),
        ("raises", Outcome.CRASH, "cannot do (64, 256)"),
        ("other_signature", Outcome.CRASH, "missing 1 required positional argument"),
        ("forks", Outcome.CRASH, "Operation not permitted"),
        ("late_start", Outcome.WRONG_VALUE, "want"),
        ("half_work", Outcome.WRONG_VALUE, "want"),
        ("background", Outcome.WRONG_VALUE, "want"),
    ],
)
async def test_what_is_wrong_is_named(judge: Judge, name: str, outcome: Outcome, words: str) -> None:
    verdict = await verdict_on(judge, name)
    assert verdict.outcome is outcome, verdict
    assert words in verdict.log
    assert len(verdict.log) <= 4000
    assert "/" not in verdict.log.replace("[...]", "")
    assert verdict.speedup is None


@pytest.mark.parametrize(
    ("kernel", "outcome", "words"),
    [
        ("x = 1", Outcome.LOAD_ERROR, "no class ModelNew"),
        ("", Outcome.LOAD_ERROR, "no class ModelNew"),
        ("ModelNew = 3", Outcome.LOAD_ERROR, "no class ModelNew"),
        ("def f(:", Outcome.LOAD_ERROR, "SyntaxError"),
        ("x = '\0'", Outcome.LOAD_ERROR, "null bytes"),
        ("x = '\ud800'", Outcome.LOAD_ERROR, "UnicodeDecodeError"),
        ("1 / 0", Outcome.LOAD_ERROR, "ZeroDivisionError"),
        ("raise SystemExit(0)", Outcome.LOAD_ERROR, "SystemExit"),
        ("raise KeyError('ModelNew')", Outcome.LOAD_ERROR, "KeyError"),
        ("import os; os._exit(0)", Outcome.CRASH, "exit code 0"),
        ("while True: pass", Outcome.TIMEOUT, "in time"),
        ("x = bytearray(1 << 40)", Outcome.OOM, "MemoryError"),
        ("import subprocess; subprocess.run(['true'])", Outcome.LOAD_ERROR, "not permitted"),
        ("#" * 10_000_000, Outcome.LOAD_ERROR, "no class ModelNew"),
        ("x = [" + "(" * 5000 + ")" * 5000 + "]", Outcome.LOAD_ERROR, "Error"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
async def test_modules_that_do_not_load(judge: Judge, kernel: str, outcome: Outcome, words: str) -> None:
    verdict = await judge.judge(source("reference"), kernel)
    assert verdict.outcome is outcome, verdict
    assert words in verdict.log


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05, 0.2])
async def test_a_kernel_may_end_at_any_time(judge: Judge, seconds: float) -> None:
    bomb = f"import os, threading\nthreading.Timer({seconds}, os._exit, [0]).start()\n"
    verdict = await judge.judge(source("reference"), bomb + source("endless"))
    assert verdict.outcome is Outcome.CRASH, verdict
    assert verdict.detail["exit_code"] == 0


async def test_a_flood_of_prints_costs_nothing_but_time(judge: Judge) -> None:
    verdict = await verdict_on(judge, "prints")
    assert verdict.outcome is Outcome.CORRECT


async def test_what_a_failing_kernel_printed_is_kept(judge: Judge) -> None:
    verdict = await judge.judge(source("reference"), "print('half way'); 1 / 0")
    assert "half way" in verdict.log


async def test_peeking_does_not_pay(judge: Judge) -> None:
    verdict = await verdict_on(judge, "peeks")
    assert verdict.outcome is not Outcome.CORRECT or verdict.speedup_low < 1.1, verdict


async def test_a_confined_kernel_finds_nothing(judge: Judge) -> None:
    if judge.sandbox == "none":
        pytest.skip("this kernel cannot confine processes")
    verdict = await verdict_on(judge, "snoops")
    assert "found: []" in verdict.log, verdict.log


async def test_a_reference_that_fails_says_nothing_about_the_kernel(judge: Judge) -> None:
    verdict = await judge.judge("def get_inputs(): return 1 / 0", source("correct"))
    assert verdict.outcome is Outcome.INFRA


async def test_cpp_is_built_for_the_kernel(judge: Judge) -> None:
    verdict = await verdict_on(judge, "cpp")
    assert verdict.outcome is Outcome.CORRECT, verdict
    assert verdict.build_s > 0


async def test_cpp_that_does_not_compile(judge: Judge) -> None:
    broken = source("cpp").replace("return result;", "return result")
    verdict = await judge.judge(source("reference"), broken)
    assert verdict.outcome is Outcome.COMPILE_ERROR, verdict
    assert "error: expected" in verdict.log


async def test_a_module_may_get_over_a_failed_build(judge: Judge) -> None:
    attempt = (
        "from torch.utils.cpp_extension import load_inline\n"
        'try: load_inline(name="x", cpp_sources="int f( {")\n'
        "except RuntimeError: pass\n"
    )
    verdict = await judge.judge(source("reference"), attempt + source("correct"))
    assert verdict.outcome is Outcome.CORRECT, verdict
