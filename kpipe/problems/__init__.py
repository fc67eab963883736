"""Problems in KernelBench format: the built-in set, and loaders for everybody else's."""

from __future__ import annotations

from functools import cache

from kpipe.assets import asset
from kpipe.domain.problem import Problem, Split, validate_source
from kpipe.problems.loaders import DEFAULT_DATASET, load, load_dataset, load_path

__all__ = ["BUILTIN_SUITE", "DEFAULT_DATASET", "builtin", "load", "load_dataset", "load_path"]

BUILTIN_SUITE = "builtin"
HELDOUT = frozenset(
    {
        "bias_swish",
        "gate_tanh",
        "gated_rnn",
        "gelu_tanh",
        "l2_norm",
        "log_softmax",
        "matmul_swish",
        "mlp",
        "mse_loss",
        "running_mean",
        "softmax",
    }
)
"""Each has a relative in the training split, so that what was learned can be asked for on something new."""


@cache
def builtin() -> tuple[Problem, ...]:
    """The problems that ship with kpipe, by level and name: milliseconds each on one CPU core."""
    found = []
    for path in sorted(asset("problems/builtin").glob("level*/*.py")):
        split: Split = "heldout" if path.stem in HELDOUT else "train"
        source = path.read_text(encoding="utf-8")
        validate_source(source, path.name)
        found.append(
            Problem(BUILTIN_SUITE, int(path.parent.name.removeprefix("level")), path.stem, split, source)
        )
    return tuple(found)
