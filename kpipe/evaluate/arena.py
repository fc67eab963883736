"""Shared memory through which tensors reach a subject and come back."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch

from kpipe.evaluate.harness import flatten, views

POISON = 0x7F
"""Byte that fills outputs before a call: a huge float, a NaN in float16, no valid bool."""
_ALIGN = 64


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a model's result or in an input set. Raises TypeError for an unusual one."""
    found: list[torch.Tensor] = []
    flatten(value, found)
    return found


def layout(inputs: Any, outputs: Sequence[torch.Tensor], slots: int) -> dict[str, Any]:
    """How `slots` input sets like this one and their outputs lie in memory, as JSON."""
    tensors: list[torch.Tensor] = []
    tree = flatten(inputs, tensors)
    places, input_step = _place(tensors)
    output_places, output_step = _place(outputs)
    return {
        "slots": slots,
        "tree": tree,
        "inputs": places,
        "input_step": input_step,
        "outputs": output_places,
        "output_step": output_step,
    }


class Inputs:
    """Input sets in a memfd. A sealed one can be mapped by others to read only."""

    def __init__(self, plan: dict[str, Any], *, sealed: bool) -> None:
        size = plan["input_step"] * plan["slots"]
        self.fd = os.memfd_create("inputs", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        self.slots = views(self.memory, plan["inputs"], plan["input_step"], plan["slots"])
        if sealed:
            fcntl.fcntl(
                self.fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
            )

    def write(self, slot: int, tensors: Sequence[torch.Tensor]) -> None:
        for place, tensor in zip(self.slots[slot], tensors, strict=True):
            place.copy_(tensor)

    def close(self) -> None:
        os.close(self.fd)


class Outputs:
    """Output slots in a memfd that a subject writes."""

    def __init__(self, plan: dict[str, Any]) -> None:
        size = plan["output_step"] * plan["slots"]
        self.fd = os.memfd_create("outputs", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self.memory = mmap.mmap(self.fd, size)
        self._step = plan["output_step"]
        self._raw = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.slots = views(self.memory, plan["outputs"], self._step, plan["slots"])

    def poison(self, slots: int) -> None:
        self._raw[: slots * self._step].fill_(POISON)

    def close(self) -> None:
        os.close(self.fd)


_F_SEAL_FUTURE_WRITE = 0x0010  # not in fcntl before Python 3.13


def _place(tensors: Sequence[torch.Tensor]) -> tuple[list[list[Any]], int]:
    """[dtype, shape, strides, offset, span] of each tensor, and the bytes of one slot."""
    places: list[list[Any]] = []
    offset = 0
    for tensor in tensors:
        strides = _dense_strides(tensor)
        span = tensor.numel()
        places.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), strides, offset, span])
        offset += -(-max(1, span * tensor.itemsize) // _ALIGN) * _ALIGN
    return places, max(offset, _ALIGN)


def _dense_strides(tensor: torch.Tensor) -> list[int]:
    """The tensor's own order of dimensions where its memory has neither gaps nor overlap, else row-major."""
    kept = torch.empty_like(tensor, memory_format=torch.preserve_format)
    return list(kept.stride())
