"""What the evaluator says about one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """Exactly one per verdict. Everything but INFRA is about the kernel; INFRA is about the machine."""

    COMPILE_ERROR = "compile_error"
    LOAD_ERROR = "load_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_VALUE = "wrong_value"
    NONDETERMINISTIC = "nondeterministic"
    HACK = "hack"
    SUSPECT = "suspect"
    UNCHANGED = "unchanged"
    CORRECT = "correct"
    INFRA = "infra"

    @property
    def compiled(self) -> bool:
        """True when there was a module to run, as KernelBench counts it."""
        return self not in (Outcome.COMPILE_ERROR, Outcome.LOAD_ERROR, Outcome.INFRA)


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation by lint or a run-time guard; `rule` is a stable name such as ``calls-reference``."""

    rule: str
    severity: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Times in milliseconds per call, `*_s` in seconds; speedup = baseline_ms / time_ms.

    `speedup_low` and `speedup_high` bound the speedup at 95 %. `detail` holds JSON evidence: first
    mismatch, signal, memory peak, seeds, number of timing pairs. `log` is what a person should read.
    """

    outcome: Outcome
    time_ms: float | None = None
    baseline_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    findings: tuple[Finding, ...] = ()
