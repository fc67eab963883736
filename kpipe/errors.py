"""Every error that kpipe raises on purpose.

    KpipeError                what happened, and what to do next; the CLI prints both and exits with `exit_code`
    ├── UsageError            the command line or an argument is wrong
    ├── ConfigError           a configuration file, --set or environment variable is wrong
    ├── ProblemError          a file is not a KernelBench-format problem
    ├── StoreError            the database is missing, locked away, full, or of another version
    │   ├── SchemaError       the schema is older or newer than this code, or not ours
    │   ├── StoreLost         the server went away during a commit; who starts again finds out what was written
    │   └── LeaseLost         this worker stalled; its job belongs to somebody else now
    ├── PolicyError           a model cannot be loaded or used as a policy
    ├── CoderError            the coder cannot be used at all (no key, unknown model, unreachable)
    │   └── BudgetSpent       coder.max_usd is reached
    ├── EvaluatorError        the machine cannot evaluate (no compiler, no device, sandbox too weak)
    └── TrainError            the update cannot be made (checkpoint damaged, other architecture)

A bad kernel is no error: it is a verdict. A coder that fails on one request is no error: it is a fault
stored with the turn.
"""

from __future__ import annotations


class KpipeError(Exception):
    """`message` is one sentence about what happened; `fix` says what to do next."""

    exit_code = 2

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class UsageError(KpipeError): ...


class ConfigError(KpipeError): ...


class ProblemError(KpipeError): ...


class StoreError(KpipeError): ...


class SchemaError(StoreError): ...


class StoreLost(StoreError):
    exit_code = 75  # EX_TEMPFAIL: `kpipe run` starts such a stage again


class LeaseLost(StoreError): ...


class PolicyError(KpipeError): ...


class CoderError(KpipeError): ...


class BudgetSpent(CoderError): ...


class EvaluatorError(KpipeError): ...


class TrainError(KpipeError): ...
