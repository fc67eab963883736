"""What was stored against what came out again: the first difference, its size, and why it may be.

Numbers are equal when their bits are, or when |stored - again| <= tolerance x max(1, |stored|).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from kpipe.store.records import TrainedSample

FIRST = ("learning_rate", "loss", "policy_loss", "kl", "grad_norm")
"""Metrics in the order in which a person looks at them; the others follow by name."""

_MEASURED = (
    "seconds",
    "tokens_per_second",
    "tokens_trained",
    "tokens_forwarded",
    "mfu",
    "peak_memory_mib",
    "environment",
    "alarms",  # the trainer's judgement, with the updates before this one in view
)

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Difference:
    """`size` is the largest absolute difference of numbers, and None where there are none to subtract."""

    what: str
    stored: Any
    again: Any
    size: float | None


def value_difference(what: str, stored: Any, again: Any) -> Difference | None:
    """None when the two have the same bits."""
    size = distance(stored, again)
    return None if size == 0.0 else Difference(what, stored, again, size)


def metric_differences(
    stored: Mapping[str, Any], again: Mapping[str, Any], *, same_names: bool = True
) -> Iterator[Difference]:
    """Of every metric that follows from the samples; seconds and memory do not.

    Versions of kpipe differ in their metrics: without `same_names` those that only one side has are skipped.
    """
    both = stored.keys() | again.keys() if same_names else stored.keys() & again.keys()
    names = {k for k in both if not k.startswith(_MEASURED)}
    for name in [*(n for n in FIRST if n in names), *sorted(names - set(FIRST))]:
        if name not in stored or name not in again:
            yield Difference(f"metric {name}", stored.get(name, MISSING), again.get(name, MISSING), None)
        elif found := value_difference(f"metric {name}", stored[name], again[name]):
            yield found


def sample_differences(
    stored: Iterable[TrainedSample], again: Iterable[TrainedSample]
) -> Iterator[Difference]:
    """Of return, advantage, weight and drop reason, turn by turn."""
    left, right = ({s.turn_id: asdict(s) for s in side} for side in (stored, again))
    for turn in sorted(left.keys() | right.keys()):
        if turn not in left or turn not in right:
            yield Difference(f"turn {turn}", turn in left, turn in right, None)
            continue
        for name, value in left[turn].items():
            if found := value_difference(f"{name.rstrip('_')} of turn {turn}", value, right[turn][name]):
                yield found


def tensor_differences(stored: Mapping[str, Tensor], again: Mapping[str, Tensor]) -> Iterator[Difference]:
    """Of parameters by name, in their order; the values are those where the two are farthest apart."""
    for name in [*stored, *(n for n in again if n not in stored)]:
        if name not in stored or name not in again or stored[name].shape != again[name].shape:
            left, right = (list(s[name].shape) if name in s else MISSING for s in (stored, again))
            yield Difference(f"tensor {name}", left, right, None)
            continue
        if found := _farthest_values(stored[name], again[name]):
            yield Difference(f"tensor {name}", *found)


def _farthest_values(stored: Tensor, again: Tensor) -> tuple[float, float, float] | None:
    left, right = (t.detach().cpu().double().flatten() for t in (stored, again))
    apart = (left - right).abs().nan_to_num(nan=math.inf)
    apart[(left == right) | (left.isnan() & right.isnan())] = 0.0
    if not apart.any():
        return None
    at = int(apart.argmax())
    return left[at].item(), right[at].item(), apart[at].item()


def within(found: Difference, tolerance: float) -> bool:
    """True when the difference is one of rounding."""
    if found.size is None:
        return False
    scale = max([1.0, *(abs(x) for x in _numbers(found.stored))])
    return found.size <= tolerance * scale


def distance(a: Any, b: Any) -> float | None:
    """Largest absolute difference of two JSON values of the same shape; None when they cannot be subtracted."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _farthest(distance(a[k], b[k]) for k in a) if a.keys() == b.keys() else None
    if isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        return _farthest(map(distance, a, b)) if len(a) == len(b) else None
    if _finite(a) and _finite(b):
        return float(abs(a - b))
    # Storing turns a number that is not finite into null.
    return 0.0 if a == b or (a is None and isinstance(b, float) and not math.isfinite(b)) else None


def _farthest(distances: Iterable[float | None]) -> float | None:
    found = list(distances)
    return None if any(d is None for d in found) else max((d for d in found if d is not None), default=0.0)


def _finite(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner)
    elif _finite(value):
        yield float(value)


def reasons(
    found: Difference, then: Mapping[str, Any] | None, now: Mapping[str, Any], notes: Sequence[str]
) -> str:
    """Why it may be: environments of the update and of the replay, and what the journal says (`notes`)."""
    said = list(notes)
    if then is None:
        said.append("the update did not record in which environment it was made")
    elif changed := changes(then, now):
        said.append("; ".join(f"{k} was {a} and is {b}" for k, (a, b) in changed.items()))
    elif not said:
        said.append("nothing that was recorded has changed (kpipe, torch, device, cpu, threads, settings)")
    return f"{_kind(found)}: {'; '.join(said)}."


def _kind(found: Difference) -> str:
    if found.what == "batch hash":
        return "what the trainer read is not what is stored now (token ids, log-probs, rewards or order)"
    if found.what.partition(" ")[0] in ("return", "advantage", "drop_reason", "turn"):
        return "the same samples are scored in another way (train.gamma, advantage, scale_rewards, group_by)"
    if found.what.startswith("metric ") and MISSING in (found.stored, found.again):
        return "the update and its replay have other metrics (train_step.metrics)"
    if found.what == "metric learning_rate":
        return "train.learning_rate or train.warmup_steps is not what the update used"
    return "the same samples gave other numbers"


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ."""
    return {
        k: (then.get(k), now.get(k)) for k in sorted(then.keys() | now.keys()) if then.get(k) != now.get(k)
    }
