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
from dataclasses import dataclass, field
from typing import Any

import torch

from kpipe.domain.stats import Interval, median_interval
from kpipe.evaluate import arena, compare
from kpipe.evaluate.compare import Mismatch, Tolerance
from kpipe.evaluate.subject import Subject

REQUEST_S = 1.5e-3
"""How long a request should take, so that sending it weighs little."""
MIN_QUADS, LOOK_EVERY, NULL_QUADS = 10, 4, 5
SLOW_QUADS, SLOW = 6, 0.7
"""A kernel clearly below SLOW x the reference is not worth a precise figure."""
MAX_CALLS, MAX_ARENA = 200, 64 << 20
LEAST_SHARE = 0.25
"""A call is taken to cost at least this share of the copying that is subtracted from it."""


class CallFailed(Exception):
    """A kernel that passed its trials failed in a timed call; the reply says how."""

    def __init__(self, side: str, reply: dict[str, Any]) -> None:
        super().__init__(side)
        self.side, self.reply = side, reply


@dataclass(frozen=True, slots=True)
class Setting:
    """`budget_s` bounds the whole, `precision` is the half width of the interval that ends it early."""

    budget_s: float
    precision: float
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per call, without the harness's share; the speedup with its 95 % interval."""

    speedup: Interval
    time_ms: float
    baseline_ms: float
    detail: dict[str, Any]


@dataclass(slots=True)
class Side:
    """One of the two subjects: what `calls` calls took in each quad, in seconds, and what null calls took."""

    name: str
    subject: Subject
    calls: int = 1
    readings: list[float] = field(default_factory=list)
    nulls: list[float] = field(default_factory=list)

    def request(self, *, null: bool = False) -> float:
        seconds, reply = self.subject.timed({"op": "calls", "count": self.calls, "null": null})
        if "error" in reply:
            raise CallFailed(self.name, reply)
        return seconds

    def net(self) -> list[float]:
        """Seconds per call in each quad."""
        null = statistics.median(self.nulls)
        return [max(r / 2 - null, null * LEAST_SHARE) / self.calls for r in self.readings]


class Bench:
    """Times `kernel` against `reference`, both of which answered a trial and are frozen.

    `draw` makes a fresh input set; `forward` is the oracle's own model, or None where the reference is
    random and has no expected output.
    """

    def __init__(
        self,
        reference: Subject,
        kernel: Subject,
        draw: Callable[[], Any],
        forward: Callable[..., Any] | None,
        sample: tuple[Any, list[torch.Tensor]],
        setting: Setting,
    ) -> None:
        self.reference, self.kernel = Side("reference", reference), Side("kernel", kernel)
        self.draw, self.forward, self.setting = draw, forward, setting
        self.sample = sample
        self.verified = 0
        self.plan: dict[str, Any] = {}

    def run(self) -> Timing | Mismatch:
        """The result, or the first timed output that was wrong. Raises CallFailed, Gone, TooSlow."""
        start = time.monotonic()
        self._choose_calls()
        inputs = arena.Inputs(self.plan, sealed=True)
        outputs = {side.name: arena.Outputs(self.plan) for side in (self.reference, self.kernel)}
        try:
            for side in (self.reference, self.kernel):
                self._share(side, inputs, outputs[side.name])
            return self._quads(inputs, outputs, start + self.setting.budget_s)
        finally:
            for shared in (inputs, *outputs.values()):
                shared.close()

    def _choose_calls(self) -> None:
        """As many calls as make a request long enough, and as the arena holds."""
        null = min(self.reference.request(null=True) for _ in range(3))
        one = arena.layout(self.sample[0], self.sample[1], 1)
        fits = max(1, MAX_ARENA // (one["input_step"] + 2 * one["output_step"]))
        for side in (self.reference, self.kernel):
            once = max(min(side.request() for _ in range(3)) - null, 2e-6)
            side.calls = min(math.ceil(REQUEST_S / once), fits, MAX_CALLS)
        slots = max(self.reference.calls, self.kernel.calls)
        self.plan = arena.layout(self.sample[0], self.sample[1], slots)

    def _share(self, side: Side, inputs: arena.Inputs, outputs: arena.Outputs) -> None:
        request = {"op": "arena", "layout": self.plan, "writable": False}
        _, reply = side.subject.timed(request, (inputs.fd, outputs.fd))
        if "error" in reply:
            raise CallFailed(side.name, reply)

    def _quads(self, inputs: arena.Inputs, outputs: dict[str, arena.Outputs], end: float) -> Timing | Mismatch:
        was_narrow = False
        for quad in range(1, 10_000):
            if wrong := self._quad(inputs, outputs):
                return wrong
            speedup = self._speedup()
            if time.monotonic() > end:
                break
            if quad >= SLOW_QUADS and speedup.high < SLOW:
                break
            if quad >= MIN_QUADS and (quad - MIN_QUADS) % LOOK_EVERY == 0:
                narrow = (speedup.high - speedup.low) / 2 <= self.setting.precision * speedup.value
                if narrow and was_narrow:
                    break
                was_narrow = narrow
        return Timing(
            speedup,
            statistics.median(self.kernel.net()) * 1e3,
            statistics.median(self.reference.net()) * 1e3,
            {
                "quads": quad,
                "calls": [self.reference.calls, self.kernel.calls],
                "verified": self.verified,
                "null_us": round(statistics.median(self.kernel.nulls) / self.kernel.calls * 1e6, 2),
            },
        )

    def _quad(self, inputs: arena.Inputs, outputs: dict[str, arena.Outputs]) -> Mismatch | None:
        for first, second in ((self.reference, self.kernel), (self.kernel, self.reference)):
            drawn = self._fill(inputs)
            for side in (first, second):
                outputs[side.name].poison(side.calls)
                reading = side.request()
                if first is self.reference:
                    side.readings.append(reading)
                else:
                    side.readings[-1] += reading
                if side is self.kernel and (wrong := self._verify(drawn, outputs[side.name])):
                    return wrong
        if len(self.kernel.readings) <= NULL_QUADS:
            for side in (self.reference, self.kernel):
                outputs["reference"].poison(side.calls)
                side.nulls.append(Side("reference", self.reference.subject, side.calls).request(null=True))
        return None

    def _fill(self, inputs: arena.Inputs) -> list[Any]:
        drawn = [self._draw_alike() for _ in range(self.plan["slots"])]
        for slot, one in enumerate(drawn):
            inputs.write(slot, arena.tensors_of(one))
        return drawn

    def _draw_alike(self) -> Any:
        """A fresh input set of the layout that the arena has."""
        for _ in range(50):
            drawn = self.draw()
            if arena.layout(drawn, self.sample[1], self.plan["slots"]) == self.plan:
                return drawn
        raise ValueError("get_inputs draws other shapes each time: such a problem cannot be timed")

    def _verify(self, drawn: list[Any], outputs: arena.Outputs) -> Mismatch | None:
        """Compare a slot that nobody could know before with the oracle's own answer."""
        if self.forward is None:
            return None
        slot = random.SystemRandom().randrange(self.kernel.calls)
        want = arena.tensors_of(self.forward(*drawn[slot]))
        self.verified += 1
        wrong = compare.values(outputs.slots[slot], want, self.setting.tolerance)
        if wrong:
            wrong.detail["in"] = "a timed call"
        return wrong

    def _speedup(self) -> Interval:
        pairs = zip(self.reference.net(), self.kernel.net(), strict=True)
        return median_interval([a / b for a, b in pairs])
