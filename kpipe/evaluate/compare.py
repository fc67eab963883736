"""Does an answer equal what is wanted? Within tolerance for floating point, exactly for everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

HALF_TOLERANCE = 1e-2
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|got - want| <= atol + rtol |want| for float32 and float64; HALF_TOLERANCE for both with half types."""

    atol: float
    rtol: float

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        if dtype in _HALF:
            return max(self.atol, HALF_TOLERANCE), max(self.rtol, HALF_TOLERANCE)
        return self.atol, self.rtol


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first wrong element of an output, and how wrong all of them are."""

    output: int
    index: tuple[int, ...]
    want: float | int | bool | str
    got: float | int | bool | str
    wrong: int
    total: int
    max_abs: float | str
    max_rel: float | str

    def sentence(self) -> str:
        where = f"output {self.output}, index {list(self.index)}"
        return (
            f"{where}: want {self.want}, got {self.got}; {self.wrong} of {self.total} values are wrong, "
            f"max absolute error {self.max_abs}, max relative error {self.max_rel}"
        )


def first_mismatch(
    want: Sequence[torch.Tensor], got: Sequence[torch.Tensor], tolerance: Tolerance
) -> Mismatch | None:
    """None when all outputs agree. Shapes and dtypes are equal already. NaN equals NaN, inf equals inf."""
    for output, (w, g) in enumerate(zip(want, got, strict=True)):
        if w.dtype is torch.bool:  # any byte but 0 and 1 was never written
            w, g = w.to(torch.uint8), g.view(torch.uint8)
        if not _all_close(w, g, tolerance):
            wrong = ~_close(w, g, tolerance)
            if wrong.any():
                return _describe(output, w, g, wrong)
    return None


def _all_close(want: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> bool:
    """The quick way to a yes: False also where NaN or inf need a closer look."""
    if not want.is_floating_point():
        return torch.equal(want, got)
    atol, rtol = tolerance.of(want.dtype)
    if want.dtype in _HALF:
        want, got = want.float(), got.float()
    error = torch.sub(got, want).abs_()
    return bool(error.lt_(torch.abs(want).mul_(rtol).add_(atol)).all())  # inf < inf is not a yes


def _close(want: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    if not (want.is_floating_point() or want.is_complex()):
        return want == got
    atol, rtol = tolerance.of(want.dtype)
    if want.dtype in _HALF:
        want, got = want.float(), got.float()
    return torch.isclose(got, want, atol=atol, rtol=rtol, equal_nan=True)


def _describe(output: int, want: torch.Tensor, got: torch.Tensor, wrong: torch.Tensor) -> Mismatch:
    index = tuple(int(i) for i in torch.nonzero(wrong)[0].tolist()) if wrong.dim() else ()
    wide = torch.complex128 if want.is_complex() else torch.float64
    error = (got.to(wide) - want.to(wide)).abs()[wrong]
    size = want.to(wide).abs()[wrong].clamp_min(torch.finfo(torch.float32).tiny)
    return Mismatch(
        output=output,
        index=index,
        want=_plain(want[index].item()),
        got=_plain(got[index].item()),
        wrong=int(wrong.sum()),
        total=want.numel(),
        max_abs=_plain(_largest(error)),
        max_rel=_plain(_largest(error / size)),
    )


def _largest(errors: torch.Tensor) -> float:
    return math.nan if bool(errors.isnan().any()) else float(errors.max())


def _plain(value: Any) -> Any:
    """JSON has no NaN, no infinity and no complex numbers; six digits are enough to read."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, complex) else value
