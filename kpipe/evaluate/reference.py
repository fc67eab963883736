"""The problem's own module, run by the oracle: its inputs, its model, its answers."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch


class Trouble(Exception):
    """The machine or the problem, not the kernel, is to blame. Its text says what happened."""


class Reference:
    """A KernelBench-format module, executed once. Every method may raise Trouble."""

    def __init__(self, source: str) -> None:
        module = types.ModuleType("reference")
        with _blame("cannot be loaded"):
            exec(compile(source, "reference.py", "exec"), module.__dict__)  # noqa: S102 -- trusted, unlike kernels
        self._module = module.__dict__
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not callable(self._module.get(name)):
                raise Trouble(f"the reference defines no {name}")

    def arguments(self, seed: int) -> list[Any]:
        """What Model is constructed with."""
        with _blame("get_init_inputs failed"):
            _seed(seed)
            return list(self._module["get_init_inputs"]())

    def model(self, arguments: Sequence[Any], seed: int) -> torch.nn.Module:
        with _blame("Model cannot be constructed"), torch.no_grad():
            _seed(seed)
            model: torch.nn.Module = self._module["Model"](*arguments)
            return model

    def inputs(self, seed: int) -> list[Any]:
        """A fresh draw; the same for the same seed."""
        with _blame("get_inputs failed"), torch.no_grad():
            _seed(seed)
            return list(self._module["get_inputs"]())

    @staticmethod
    def answer(model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs as a list; the inputs are left as they are."""
        mine = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        with _blame("Model.forward failed"), torch.no_grad():
            result = model(*mine)
        outputs = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(outputs, (list, tuple)) or not all(isinstance(o, torch.Tensor) for o in outputs):
            raise Trouble(
                f"the reference returns {type(result).__name__}, not a tensor or a tuple of tensors"
            )
        return list(outputs)


class _blame:
    """Turn any exception of the reference into Trouble."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, Trouble):
            raise Trouble(f"the reference's {self.what}: {type(error).__name__}: {error}") from error


def _seed(seed: int) -> None:
    """torch.manual_seed would queue a call for a device that is not there, each time."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % (1 << 32))
