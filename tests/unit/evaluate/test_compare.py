"""Equal within tolerance, and where not."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch

from kpipe.evaluate.compare import Tolerance, first_mismatch

TOLERANCE = Tolerance(1e-4, 1e-4)


def mismatch(want: list, got: list, dtype: torch.dtype = torch.float32):
    return first_mismatch([torch.tensor(want, dtype=dtype)], [torch.tensor(got, dtype=dtype)], TOLERANCE)


@pytest.mark.parametrize(
    ("want", "got", "dtype"),
    [
        ([1.0, 2.0], [1.00019, 2.0], torch.float32),
        ([1.0, 2.0], [1.019, 2.0], torch.float16),
        ([1.0, 2.0], [1.01, 2.0], torch.bfloat16),
        ([math.nan, math.inf, -math.inf], [math.nan, math.inf, -math.inf], torch.float32),
        ([1, 2], [1, 2], torch.int64),
        ([True, False], [True, False], torch.bool),
        ([], [], torch.float32),
        ([1 + 1j], [1 + 1.0001j], torch.complex64),
    ],
)
def test_close_enough(want: list, got: list, dtype: torch.dtype) -> None:
    assert mismatch(want, got, dtype) is None


@pytest.mark.parametrize(
    ("want", "got", "dtype"),
    [
        ([1.0, 2.0], [1.0003, 2.0], torch.float32),
        ([1.0, 2.0], [1.03, 2.0], torch.float16),
        ([1.0, math.nan], [1.0, 0.0], torch.float32),
        ([1.0, 0.0], [1.0, math.nan], torch.float32),
        ([math.inf], [-math.inf], torch.float32),
        ([math.inf], [1e38], torch.float32),
        ([1, 2], [1, 3], torch.int32),
        ([True, False], [True, True], torch.bool),
        ([1 + 1j], [1 + 2j], torch.complex64),
    ],
)
def test_too_far_apart(want: list, got: list, dtype: torch.dtype) -> None:
    found = mismatch(want, got, dtype)
    assert found is not None
    json.dumps(asdict(found), allow_nan=False)


def test_the_first_wrong_element_is_shown() -> None:
    want = torch.zeros(3, 4)
    got = want.clone()
    got[1, 2], got[2, 0] = 0.5, 2.0
    found = first_mismatch([want, want], [want, got], TOLERANCE)
    assert found is not None
    assert (found.output, found.index, found.want, found.got) == (1, (1, 2), 0.0, 0.5)
    assert (found.wrong, found.total, found.max_abs) == (2, 12, 2.0)


def test_a_bool_that_was_never_written_is_wrong() -> None:
    poisoned = torch.full((4,), 0x7F, dtype=torch.uint8).view(torch.bool)
    assert first_mismatch([torch.ones(4, dtype=torch.bool)], [poisoned], TOLERANCE)
