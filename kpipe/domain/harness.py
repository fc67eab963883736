"""Names under which verdicts are stored: the protocol's version and the kind of device."""

from __future__ import annotations

from kpipe.errors import EvaluatorError

HARNESS = "1"
"""Changes whenever verdicts of the same kernel are no longer comparable."""


def device_kind(setting: str) -> str:
    """`evaluate.device` as it is stored with every verdict. Raises EvaluatorError for an unknown kind."""
    kind = setting.partition(":")[0]
    if kind in ("auto", "cpu"):
        return "cpu"
    raise EvaluatorError(
        f"evaluate.device = {setting}: kernels are evaluated on the CPU in this version.",
        "Set evaluate.device=cpu.",
    )
