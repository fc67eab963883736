"""When do two verdicts agree, and when has a speedup drifted?"""

from __future__ import annotations

import pytest

from kpipe.replay.rejudge import Pair, holds, spread, summary
from kpipe.store.records import JudgedKernel


def judged(
    speedup: float | None, width: float = 0.02, outcome: str = "correct", number: int = 1
) -> JudgedKernel:
    low, high = (None, None) if speedup is None else (speedup * (1 - width), speedup * (1 + width))
    return JudgedKernel(number, 1, "gelu", "ab" * 32, "cpu", 0, "done", outcome, speedup, low, high, None)


@pytest.mark.parametrize(
    ("before", "after", "overlap", "drifted"),
    [
        (judged(2.0), judged(2.04), True, False),
        (judged(2.0), judged(2.1), False, False),  # apart, but by less than a tenth
        (judged(2.0), judged(2.4), False, True),
        (judged(2.0), judged(1.5), False, True),
        (judged(2.0, width=0.3), judged(1.5), True, False),  # a wide interval knows nothing better
        (judged(None, outcome="crash"), judged(None, outcome="crash"), None, False),
        (judged(2.0), judged(None, outcome="crash"), None, False),
    ],
)
def test_drift(before: JudgedKernel, after: JudgedKernel, overlap: bool | None, drifted: bool) -> None:
    assert (Pair(before, after).overlap, Pair(before, after).drifted) == (overlap, drifted)


def test_the_summary_counts() -> None:
    pairs = [
        Pair(judged(2.0), judged(2.0)),
        Pair(judged(2.0), judged(3.0)),
        Pair(judged(2.0), judged(None, outcome="crash")),
    ]
    assert summary(pairs) == "2 of 3 verdicts agree; median ratio of speedups 1.250, 1 of 2 drifted."
    assert summary(pairs[2:]) == "0 of 1 verdicts agree."


def test_a_fault_of_the_machine_is_no_other_verdict() -> None:
    same, other = Pair(judged(2.0), judged(2.0)), Pair(judged(2.0), judged(None, outcome="crash"))
    faults = [
        Pair(judged(2.0), judged(None, outcome="infra")),
        Pair(judged(None, outcome="infra"), judged(2.0)),
    ]
    assert summary([same, *faults]) == (
        "1 of 1 verdicts agree, 2 could not be judged (infra); median ratio of speedups 1.000, 0 of 1 drifted."
    )
    assert holds([same, *faults])
    assert not holds([same, other, *faults])
    assert not holds(faults)


def test_a_sample_is_the_same_every_time() -> None:
    known = [judged(1.0, number=n) for n in range(50)]
    picked = spread(known, 7)
    assert [k.id for k in picked] == sorted({k.id for k in picked})
    assert len(picked) == 7
    assert spread(known, 7) == picked
    assert spread(known, 70) == known
