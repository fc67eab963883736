"""Copies of the metrics for other programs to draw: TensorBoard, and Weights & Biases without a network.

The store is the truth. A sink's directory is made anew from it at every start, so that a killed trainer
leaves neither gaps nor doubles; one that cannot be written to is given up, and training goes on.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kpipe.errors import TrainError
from kpipe.store.records import Run, TrainStep

log = logging.getLogger("kpipe.train")


class Sink(Protocol):
    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """`tensorboard --logdir` shows it."""

    def __init__(self, root: Path, run: Run) -> None:
        path = root / "tensorboard"
        shutil.rmtree(path, ignore_errors=True)
        self._writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(path))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Offline unless WANDB_MODE says otherwise; `wandb sync` uploads it."""

    def __init__(self, root: Path, run: Run) -> None:
        package = _package("wandb", "wandb")
        shutil.rmtree(root / "wandb", ignore_errors=True)
        self._run = package.init(
            project="kpipe",
            name=run.name,
            id=f"kpipe-{run.name}",
            dir=str(root),
            config=dict(run.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=package.Settings(silent=True, console="off"),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, Callable[[Path, Run], Sink]] = {"tensorboard": TensorBoard, "wandb": Wandb}


class Sinks:
    """All sinks of a run."""

    def __init__(self, names: Sequence[str], root: Path, run: Run, history: Iterable[TrainStep]) -> None:
        """Raises TrainError when a sink's package is not installed."""
        self._sinks: dict[str, Sink] = {}
        for name in dict.fromkeys(names):
            self._sinks[name] = KINDS[name](root, run)
        if self._sinks:
            for made in history:
                self.write(made.step, made.metrics)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        values = dict(numbers(metrics))
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(step, values)
            except OSError as error:
                log.warning("%s cannot be written to any more (%s); training goes on", name, error)
                del self._sinks[name]

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number under a name of its own: dropped/stale, reward_by_turn/2 (counted from 1)."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", x) for key, x in numbers(value))
        elif isinstance(value, list):
            yield from numbers({f"{name}/{i}": x for i, x in enumerate(value, 1)})
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _package(name: str, shown: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise TrainError(
            f"train.sinks names {shown}, which is not installed.", "pip install 'kpipe[tracking]'"
        ) from None
