"""Two sets of numbers: the first difference, its size, and whether it is one of rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kpipe.replay.compare import (
    Difference,
    changes,
    distance,
    metric_differences,
    reasons,
    sample_differences,
    tensor_differences,
    within,
)
from kpipe.store.records import TrainedSample


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.5, 0.5),
        (1, 1.0, 0.0),
        ([1.0, 2.0], [1.0, 5.0], 3.0),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], None),
        ({"infra": 2}, {"infra": 5}, 3.0),
        ({"infra": 2}, {"stale": 2}, None),
        (None, 1.0, None),
        (None, None, 0.0),
        (None, math.nan, 0.0),  # the store keeps no NaN
        ("a", "a", 0.0),
        ("a", "b", None),
        (True, False, None),
    ],
)
def test_distance(a: Any, b: Any, apart: float | None) -> None:
    assert distance(a, b) == apart


def test_metrics_that_are_measured_are_left_out_and_important_ones_come_first() -> None:
    stored = {
        "seconds": 1.0,
        "seconds_save": 2.0,
        "tokens_per_second": 9.0,
        "clip": 0.1,
        "loss": 0.5,
        "old": 1,
    }
    again = {
        **stored,
        "seconds": 2.0,
        "seconds_save": 3.0,
        "tokens_per_second": 1.0,
        "clip": 0.2,
        "loss": 0.6,
    }
    del again["old"]
    other_version = metric_differences(stored, again, same_names=False)
    assert [d.what for d in other_version] == ["metric loss", "metric clip"]
    assert Difference("metric old", 1, "missing", None) in list(metric_differences(stored, again))


def test_samples_are_compared_by_turn() -> None:
    stored = [TrainedSample(1, 1.0, 0.5, 1.0, None), TrainedSample(2, None, None, None, "infra")]
    again = [TrainedSample(2, None, None, None, "singleton"), TrainedSample(1, 1.0, 0.25, 1.0, None)]
    found = list(sample_differences(stored, again))
    assert [(d.what, d.size) for d in found] == [
        ("advantage of turn 1", 0.25),
        ("drop_reason of turn 2", None),
    ]
    assert next(d.what for d in sample_differences(stored, again[:1])) == "turn 1"


def test_tensors_are_named_with_their_farthest_values() -> None:
    stored = {"a": torch.tensor([1.0, math.nan]), "b": torch.tensor([[1.0, 2.0]]), "gone": torch.zeros(1)}
    again = {"a": torch.tensor([1.0, math.nan]), "b": torch.tensor([[1.1, 4.0]]), "c": torch.zeros(2)}
    changed, gone, new = tensor_differences(stored, again)
    assert changed == Difference("tensor b", 2.0, 4.0, 2.0)
    assert (gone.what, gone.again) == ("tensor gone", "missing")
    assert (new.what, new.stored) == ("tensor c", "missing")


def test_a_number_that_became_nan_is_infinitely_far() -> None:
    (found,) = tensor_differences({"a": torch.ones(2)}, {"a": torch.tensor([1.0, math.nan])})
    assert found.size == math.inf
    assert not within(found, 1e3)


@pytest.mark.parametrize(
    ("found", "rounding"),
    [
        (Difference("metric loss", 0.5, 0.5005, 0.0005), True),
        (Difference("metric loss", 0.5, 0.502, 0.002), False),
        (Difference("metric tokens", 1000.0, 1000.5, 0.5), True),  # relative to large numbers
        (Difference("batch hash", "a", "b", None), False),
    ],
)
def test_within(found: Difference, rounding: bool) -> None:
    assert within(found, 1e-3) is rounding
    assert not within(found, 0.0)


def test_reasons_say_what_has_changed() -> None:
    found = Difference("metric loss", 1.0, 2.0, 1.0)
    then, now = {"torch": "2.10", "threads": 1}, {"torch": "2.11", "threads": 1}
    assert changes(then, now) == {"torch": ("2.10", "2.11")}
    assert reasons(found, then, now, []) == "the same samples gave other numbers: torch was 2.10 and is 2.11."
    assert "did not record" in reasons(found, None, now, [])
    assert "nothing that was recorded has changed" in reasons(found, now, now, [])
    assert reasons(found, now, now, ["a note"]).endswith("a note.")
