"""A KernelBench-format problem: a Python module with Model, get_inputs and get_init_inputs."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from kpipe.errors import ProblemError

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One optimization task. `source` is the PyTorch reference, the whole module as text."""

    suite: str
    level: int
    name: str
    split: Split
    source: str


def validate_source(source: str, name: str) -> None:
    """Refuse a module that cannot be a problem, without running it.

    Raises ProblemError, naming the file and the reason.
    """
    if "\0" in source:
        raise ProblemError(f"{name} is not text (it has NUL bytes).", "Give a Python file.")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise ProblemError(
            f"{name}: is not valid Python ({error.args[0]}{where}).", "Fix the file."
        ) from None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = [n for n, there in (("class Model", "Model" in classes),) if not there]
    missing += [f"{f}()" for f in ("get_inputs", "get_init_inputs") if f not in functions]
    if missing:
        raise ProblemError(
            f"{name}: is not a KernelBench problem: it has no {' and no '.join(missing)} at top level.",
            "A problem defines class Model, get_inputs() and get_init_inputs(); see docs/problems.md.",
        )
    methods = {n.name for n in classes["Model"].body if isinstance(n, ast.FunctionDef)}
    if "forward" not in methods or not classes["Model"].bases:
        raise ProblemError(
            f"{name}: class Model is not a torch.nn.Module with a forward method.",
            "Derive Model from torch.nn.Module and give it forward().",
        )
