"""Can a problem be passed without doing its work? Looks at the reference alone; no kernel is involved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.benchmark import Timer

from kpipe.config import EvaluateConfig
from kpipe.domain.problem import Problem
from kpipe.evaluate.arena import tensors_of
from kpipe.evaluate.compare import Tolerance, first_mismatch
from kpipe.evaluate.reference import Reference, Trouble

DRAWS, TIMED_S = 5, 0.3
Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is stable, `text` is for people."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What is wrong with a problem, and the milliseconds that its reference takes; None where it was not timed."""

    suite: str
    name: str
    findings: list[Finding] = field(default_factory=list)
    eager_ms: float | None = None
    compiled_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One draw of inputs and the right answer to it."""

    inputs: list[Any]
    want: Tensors


def audit(problem: Problem, config: EvaluateConfig, *, compiled: bool) -> Audit:
    """Judge and time one problem on one thread of the CPU. Never raises for what the problem does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = Reference(problem.source)
        model = reference.model(reference.arguments(1), 1)
        cases = [_case(reference, model, seed) for seed in range(1, DRAWS + 1)]
        findings = list(_findings(reference, model, cases, Tolerance(config.atol, config.rtol)))
        eager_ms = _time(model, cases[0].inputs)
        compiled_ms = None
        if compiled:
            try:
                compiled_ms = _time(torch.compile(model), cases[0].inputs)
            except Exception as error:  # whatever a compiler may raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                findings.append(Finding("not_compiled", f"torch.compile cannot compile it: {reason}"))
    except Trouble as trouble:
        return Audit(problem.suite, problem.name, [Finding("broken", str(trouble))])
    finally:
        torch.set_num_threads(threads)
        torch.compiler.reset()
    return Audit(problem.suite, problem.name, findings, eager_ms, compiled_ms)


def _case(reference: Reference, model: torch.nn.Module, seed: int) -> Case:
    inputs = reference.inputs(seed)
    torch.manual_seed(seed)
    return Case(inputs, [t.clone() for t in reference.answer(model, inputs)])


def _findings(
    reference: Reference, model: torch.nn.Module, cases: Sequence[Case], tolerance: Tolerance
) -> Iterator[Finding]:
    """`passes` holds when an answer made without work is accepted in every draw, as a cheat needs it."""
    kinds = {tuple((t.dtype, t.shape) for t in (*tensors_of(c.inputs), *c.want)) for c in cases}
    if len(kinds) > 1:
        yield Finding("shapes_vary", "Shapes or dtypes differ between draws: such a problem cannot be timed.")
        return

    def passes(cheat: Callable[[Case], Tensors]) -> bool:
        return all(first_mismatch(c.want, cheat(c), tolerance) is None for c in cases)

    again = {id(c): reference.answer(model, c.inputs) for c in cases}
    if not passes(lambda c: again[id(c)]):
        yield Finding("random", "Two calls on the same inputs differ: no kernel can be held to either.")
        return
    if not any(t.numel() for t in cases[0].want):
        yield Finding("empty", "The output has no elements: anything passes.")
        return
    if all(_equal(c.inputs, cases[0].inputs) for c in cases[1:]) and tensors_of(cases[0].inputs):
        yield Finding("inputs_fixed", "get_inputs draws the same each time: the answer can be remembered.")
    elif passes(lambda c: [torch.zeros_like(t) for t in c.want]):
        yield Finding("zeros_pass", "An output of zeros passes.")
    elif passes(lambda c: cases[0].want):
        yield Finding(
            "constant_passes", "The answer to one input passes for all: the output hardly depends on it."
        )
    else:
        yield from _shortcuts(reference, model, cases, tolerance)
    if not all(bool(t.isfinite().all()) for c in cases for t in c.want if t.is_floating_point()):
        yield Finding("not_finite", "The right answer has infinities or NaN.")


def _shortcuts(
    reference: Reference, model: torch.nn.Module, cases: Sequence[Case], tolerance: Tolerance
) -> Iterator[Finding]:
    """Work that can be left out: returning an input, ignoring one, computing less."""
    count = len(tensors_of(cases[0].inputs))
    for number in range(count):
        given = [tensors_of(c.inputs)[number] for c in cases]
        if len(cases[0].want) == 1 and all(
            g.shape == c.want[0].shape
            and g.dtype == c.want[0].dtype
            and first_mismatch(c.want, [g], tolerance) is None
            for g, c in zip(given, cases, strict=True)
        ):
            yield Finding("identity_passes", f"Input {number}, returned as it is, passes.")
        swapped = (_answer_with(reference, model, c, number, given[i - 1]) for i, c in enumerate(cases))
        if all(first_mismatch(c.want, s, tolerance) is None for c, s in zip(cases, swapped, strict=True)):
            yield Finding("input_unused", f"Input {number} has no influence on the output.")


def _answer_with(
    reference: Reference, model: torch.nn.Module, case: Case, number: int, other: torch.Tensor
) -> Tensors:
    """The answer when tensor `number` of the inputs has the values of another draw."""
    mine = tensors_of(case.inputs)[number]
    kept = mine.clone()
    mine.copy_(other)
    try:
        return reference.answer(model, case.inputs)
    finally:
        mine.copy_(kept)


def _equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors_of(a), tensors_of(b), strict=True))


def _time(model: Any, inputs: Sequence[Any]) -> float:
    """Milliseconds of a call, the median of many."""
    with torch.no_grad():
        timer = Timer("model(*inputs)", globals={"model": model, "inputs": inputs})
        timer.timeit(1)
        return timer.blocked_autorange(min_run_time=TIMED_S).median * 1e3
