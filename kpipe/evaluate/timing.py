"""Paired timing of a kernel against the reference, by somebody who trusts neither's clock.

One quad is A B B A: reference, kernel, kernel, reference, each a request of many calls on inputs that
did not exist before it. The ratio (a1 + a2) / (b1 + b2) does not see a machine that slows down or speeds
up steadily; the median over quads does not see interruptions.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kpipe.config import EvaluateConfig
from kpipe.domain.stats import Interval, median_interval
from kpipe.evaluate import arena, compare
from kpipe.evaluate.compare import Mismatch, Tolerance
from kpipe.evaluate.harness import flatten
from kpipe.evaluate.reference import Trouble
from kpipe.evaluate.subject import Subject

REQUEST_S, SLOW_REQUEST_S = 0.4e-3, 4e-3
"""How long a request of the faster side should take, and of the slower one at most."""
MIN_QUADS, LOOK_EVERY, NULL_QUADS, MAX_QUADS = 10, 4, 5, 1000
SLOW_QUADS, SLOW = 6, 0.7
"""A kernel clearly below SLOW x the reference is not worth a precise figure."""
MAX_CALLS, MAX_ARENA = 64, 64 << 20
LEAST_CALL_S = 2e-6
LEAST_SHARE = 0.25
"""A call is taken to cost at least this share of the copying that is subtracted from it."""
DRAWS = 50


class Wrong(Exception):
    """A kernel that passed its trials gave a wrong answer in a timed call."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch.sentence())
        self.mismatch = mismatch


class CallFailed(Exception):
    """A subject that passed its trials raised in a timed call."""

    def __init__(self, subject: Subject, reply: dict[str, Any]) -> None:
        super().__init__(str(reply.get("log")))
        self.subject, self.reply = subject, reply


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per call, without the harness's share; the speedup with its 95 % interval."""

    speedup: Interval
    time_ms: float
    baseline_ms: float
    detail: dict[str, Any]


class Side:
    """A subject: its outputs, and what its requests took in seconds."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.readings: list[float] = []  # of each quad the two requests
        self.outputs: arena.Outputs

    def map(self, plan: dict[str, Any], inputs: arena.Inputs) -> None:
        self._ask({"op": "arena", "layout": plan, "writable": False}, (inputs.fd, self.outputs.fd))

    def request(self, calls: int, *, null: bool = False) -> float:
        """Seconds that `calls` calls take."""
        return self._ask({"op": "calls", "count": calls, "null": null})

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> float:
        seconds, reply = self.subject.timed(message, fds)
        if "error" in reply:
            raise CallFailed(self.subject, reply)
        return seconds


class Bench:
    """Times `kernel` against `reference`, both of which answered a trial and are frozen.

    `draw` makes a fresh input set; `answer` is the oracle's own, or None where the reference is random and
    nothing can be expected of a second call.
    """

    def __init__(
        self,
        reference: Subject,
        kernel: Subject,
        draw: Callable[[], Any],
        answer: Callable[[Any], list[torch.Tensor]] | None,
        config: EvaluateConfig,
    ) -> None:
        self.reference, self.kernel = self.sides = Side(reference), Side(kernel)
        self.draw, self.answer, self.config = draw, answer, config
        self.tolerance = Tolerance(config.atol, config.rtol)
        self.verified = 0
        self.nulls: list[float] = []

    def run(self, inputs: Any, outputs: list[torch.Tensor]) -> Timing:
        """`inputs` and `outputs` are those of the trial. Raises Wrong, CallFailed, Failure, Trouble."""
        end = time.monotonic() + self.config.timing_budget_s
        self.kinds = [(t.dtype, t.shape) for t in arena.tensors_of(inputs)]
        one = arena.layout(inputs, outputs, 1)
        self.calls = max(1, min(MAX_CALLS, MAX_ARENA // (one["input_step"] + 2 * one["output_step"])))
        self.plan = {**one, "slots": self.calls}
        shared = arena.Inputs(self.plan, sealed=True)
        for side in self.sides:
            side.outputs = arena.Outputs(self.plan)
        try:
            for side in self.sides:
                side.map(self.plan, shared)
            self._choose_calls(shared)
            return self._quads(shared, end)
        finally:
            shared.close()
            for side in self.sides:
                side.outputs.close()

    def _choose_calls(self, inputs: arena.Inputs) -> None:
        """As few calls as make a request long enough; all that a request touches is warm afterwards."""
        most, self.calls = self.calls, 1
        null = min(self.reference.request(1, null=True) for _ in range(2))
        self._fill(inputs)
        once = [max(min(side.request(1) for _ in range(3)) - null, LEAST_CALL_S) for side in self.sides]
        self.calls = max(1, min(most, math.ceil(REQUEST_S / min(once)), int(SLOW_REQUEST_S / max(once))))
        self._fill(inputs)
        for side in self.sides:
            side.request(self.calls)

    def _quads(self, inputs: arena.Inputs, end: float) -> Timing:
        narrow = 0
        for quad in range(1, MAX_QUADS):
            self._quad(inputs)
            speedup = self._speedup()
            if time.monotonic() > end or (quad >= SLOW_QUADS and speedup.high < SLOW):
                break
            if quad >= MIN_QUADS and (quad - MIN_QUADS) % LOOK_EVERY == 0:
                precise = (speedup.high - speedup.low) / 2 <= self.config.timing_precision * speedup.value
                narrow = narrow + 1 if precise else 0
                if narrow == 2:
                    break
        null = statistics.median(self.nulls) / self.calls
        detail = {"quads": len(self.kernel.readings), "calls": self.calls, "verified": self.verified}
        detail["null_us"] = round(null * 1e6, 2)
        time_ms, baseline_ms = (statistics.median(self._net(s)) * 1e3 for s in (self.kernel, self.reference))
        return Timing(speedup, time_ms, baseline_ms, detail)

    def _quad(self, inputs: arena.Inputs) -> None:
        """Reference, kernel; fresh inputs; kernel, reference."""
        for side in self.sides:
            side.readings.append(0.0)
        for order in (self.sides, self.sides[::-1]):
            drawn = self._fill(inputs)
            for side in order:
                side.readings[-1] += side.request(self.calls)
            self._verify(drawn)
        if len(self.nulls) < NULL_QUADS:
            self.nulls.append(self.reference.request(self.calls, null=True))

    def _fill(self, inputs: arena.Inputs) -> list[Any]:
        """Fresh input sets in as many slots as a request uses; the sets."""
        drawn = []
        for slot in range(self.calls):
            one, tensors = self._draw_alike()
            inputs.write(slot, tensors)
            drawn.append(one)
        return drawn

    def _draw_alike(self) -> tuple[Any, list[torch.Tensor]]:
        """A fresh input set of the layout that the arena has, and its tensors."""
        for _ in range(DRAWS):
            drawn = self.draw()
            tensors: list[torch.Tensor] = []
            tree = flatten(drawn, tensors)
            if tree == self.plan["tree"] and [(t.dtype, t.shape) for t in tensors] == self.kinds:
                return drawn, tensors
        raise Trouble("get_inputs draws other shapes or numbers each time: such a problem cannot be timed")

    def _verify(self, drawn: list[Any]) -> None:
        """Compare a slot that nobody could foresee with the oracle's own answer.

        The reference's is compared too, so that both sides find their memory in the same state again.
        """
        if self.answer is None:
            return
        slot = random.SystemRandom().randrange(self.calls)
        want = self.answer(drawn[slot])
        wrong, doubtful = (
            compare.first_mismatch(want, side.outputs.slots[slot], self.tolerance)
            for side in (self.kernel, self.reference)
        )
        if doubtful:
            raise Trouble("the reference's answers differ between two processes")
        if wrong:
            raise Wrong(wrong)
        self.verified += 1

    def _speedup(self) -> Interval:
        pairs = zip(self._net(self.reference), self._net(self.kernel), strict=True)
        return median_interval([a / b for a, b in pairs])

    def _net(self, side: Side) -> list[float]:
        """Seconds per call in each quad, without what calling and copying the output cost."""
        null = statistics.median(self.nulls)
        return [max(r / 2 - null, null * LEAST_SHARE) / self.calls for r in side.readings]
