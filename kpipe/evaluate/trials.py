"""One kernel before the oracle: construct, check on fresh inputs, time.

Seeds are drawn here, when the kernel is loaded and can no longer choose. Draw number n of the inputs has
the seed `inputs` + n, so that a stored verdict can be replayed.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome
from kpipe.evaluate import arena, wire
from kpipe.evaluate.compare import Mismatch, Tolerance, first_mismatch
from kpipe.evaluate.reference import Reference, Trouble
from kpipe.evaluate.subject import Subject
from kpipe.evaluate.timing import Bench, Timing, Wrong

_SEED_BITS = 48  # exact in JSON


class Failed(Exception):
    """Any verdict but `correct`."""

    def __init__(self, outcome: Outcome, log: str, **detail: Any) -> None:
        super().__init__(log)
        self.outcome, self.log, self.detail = outcome, log, detail


class Trials:
    """`kernel` and `runner` are processes that have loaded the kernel and the reference.

    `detail` fills on the way, so that a crash keeps what was known before it. `seeds` are those of a verdict
    that is replayed.
    """

    def __init__(
        self,
        reference: Reference,
        kernel: Subject,
        runner: Subject,
        config: EvaluateConfig,
        seeds: dict[str, int] | None = None,
    ) -> None:
        self.reference, self.kernel, self.runner, self.config = reference, kernel, runner, config
        self.tolerance = Tolerance(config.atol, config.rtol)
        self.seeds = seeds or {"model": _seed(), "inputs": _seed()}
        self.detail: dict[str, Any] = {"seeds": self.seeds, "draws": 0}

    def run(self) -> Timing:
        """Raises Failed, Failure and Trouble."""
        arguments = self.reference.arguments(self.seeds["model"])
        self.model = self.reference.model(arguments, self.seeds["model"])
        self.payload = pickle.dumps((arguments, self.model.state_dict()))
        self.detail["parameters"] = str(self._construct(self.kernel).get("parameters"))
        for trial in range(1, self.config.trials + 1):
            self._try(trial)
        return self._time()

    def draw(self) -> list[Any]:
        """Fresh inputs."""
        self.detail["draws"] += 1
        return self.reference.inputs(self.seeds["inputs"] + self.detail["draws"])

    def answer(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return self.reference.answer(self.model, inputs)

    def _try(self, trial: int) -> None:
        inputs = self.draw()
        torch.manual_seed(seed := _seed())
        want = [t.clone() for t in self.answer(inputs)]
        if trial == 1:
            self.random = first_mismatch(want, self.answer(inputs), self.tolerance) is not None
        with Exchange(self.kernel, inputs, want) as exchange:
            reply = _accepted(exchange.call(seed))
            _check_kind(reply, want)
            got = exchange.got()
            if wrong := first_mismatch(want, got, self.tolerance):
                again = exchange.call(seed)
                same = "error" in again or all(map(_same, got, exchange.got()))
                raise _wrong(wrong, same, trial=trial)
            for number, (now, then) in enumerate(
                zip(exchange.inputs.slots[0], arena.tensors_of(inputs), strict=True)
            ):
                if not _same(now, then):
                    log = f"forward changed its input {number}, which belongs to the caller."
                    raise Failed(Outcome.WRONG_VALUE, log, trial=trial, changed_input=number)

    def _time(self) -> Timing:
        """The runner first goes through all that the kernel went through: their heaps must look alike."""
        inputs = self.draw()
        want = self.answer(inputs)
        self._construct(self.runner)
        for _ in range(self.config.trials):
            with Exchange(self.runner, inputs, want) as exchange:
                self._check_runner(exchange, want)
        with Exchange(self.kernel, inputs, want) as own, Exchange(self.runner, inputs, want) as other:
            _accepted(own.call(_seed()))
            self._check_runner(other, want)
            self.kernel.freeze()
            self.runner.freeze()
            answer = None if self.random else self.answer
            try:
                return Bench(self.runner, self.kernel, self.draw, answer, self.config).run(inputs, want)
            except Wrong as error:
                raise _wrong(error.mismatch, True, timed=True) from None

    def _check_runner(self, exchange: Exchange, want: Sequence[torch.Tensor]) -> None:
        """One call of the reference in its own process. Raises Trouble."""
        reply = exchange.call(_seed())
        if "error" in reply:
            raise Trouble(f"the reference's process failed: {reply.get('log')}")
        if not self.random and first_mismatch(want, exchange.got(), self.tolerance):
            raise Trouble("the reference's answers differ between two processes")

    def _construct(self, subject: Subject) -> dict[str, Any]:
        file = wire.memory_file("payload", self.payload)
        os.lseek(file, 0, os.SEEK_SET)
        try:
            reply = subject.ask({"op": "construct", "seed": self.seeds["model"]}, (file,))
        finally:
            os.close(file)
        if subject is self.runner and "error" in reply:
            raise Trouble(f"the reference's process failed: {reply.get('log')}")
        return _accepted(reply)


class Exchange:
    """One input set in memory that the subject may write, so that a change is seen, and its outputs."""

    def __init__(self, subject: Subject, inputs: Sequence[Any], want: Sequence[torch.Tensor]) -> None:
        self.subject = subject
        plan = arena.layout(inputs, want, 1)
        self.inputs, self.outputs = arena.Inputs(plan, sealed=False), arena.Outputs(plan)
        self.inputs.write(0, arena.tensors_of(inputs))
        request = {"op": "arena", "layout": plan, "writable": True}
        _accepted(subject.ask(request, (self.inputs.fd, self.outputs.fd)))

    def call(self, seed: int) -> dict[str, Any]:
        self.outputs.poison(1)
        return self.subject.ask({"op": "trial", "slot": 0, "seed": seed})

    def got(self) -> list[torch.Tensor]:
        """Copies that the subject cannot reach."""
        return [t.clone() for t in self.outputs.slots[0]]

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.inputs.close()
        self.outputs.close()


def _accepted(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, unless it is an exception. Raises Failed."""
    if "error" in reply:
        outcome = Outcome.OOM if reply["error"] == "oom" else Outcome.CRASH
        raise Failed(outcome, str(reply.get("log", "")))
    return reply


def _check_kind(reply: dict[str, Any], wanted: Sequence[torch.Tensor]) -> None:
    """Hold what a subject says that it returned against what the reference returned. Raises Failed."""
    if "type" in reply:
        text = f"forward returned {str(reply['type'])[:200]}, not a tensor or a tuple or list of tensors."
        raise Failed(Outcome.WRONG_DTYPE, text)
    got, want = reply.get("outputs"), [[str(t.dtype), list(t.shape)] for t in wanted]
    if not isinstance(got, list) or len(got) != len(want):
        count = len(got) if isinstance(got, list) else 0
        raise Failed(Outcome.WRONG_SHAPE, f"forward returned {count} tensors, want {len(want)}.")
    for part, outcome in ((1, Outcome.WRONG_SHAPE), (0, Outcome.WRONG_DTYPE)):
        for output, (mine, right) in enumerate(zip(got, want, strict=True)):
            shown = mine[part] if isinstance(mine, list) and len(mine) == 2 else None
            if shown != right[part]:
                text = f"Output {output}: got {str(shown)[:200]}, want {right[part]}."
                raise Failed(outcome, text, output=output, want=right[part])


def _wrong(wrong: Mismatch, repeats: bool, **detail: Any) -> Failed:
    if repeats:
        return Failed(Outcome.WRONG_VALUE, wrong.sentence(), mismatch=asdict(wrong), **detail)
    log = f"Two calls on the same inputs differ. One of them: {wrong.sentence()}"
    return Failed(Outcome.NONDETERMINISTIC, log, mismatch=asdict(wrong), **detail)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal values, where NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _seed() -> int:
    return secrets.randbits(_SEED_BITS)
