"""Tensors in shared memory keep their shapes, types, strides and values."""

from __future__ import annotations

import json
import mmap

import pytest
import torch

from kpipe.evaluate import arena
from kpipe.evaluate.harness import flatten, unflatten, views

SETS = [
    [torch.randn(3, 5), torch.arange(4), torch.tensor([True, False])],
    [torch.randn(4, 6).T, torch.randn(2, 3).to(torch.bfloat16)],
    [torch.tensor(2.5), torch.empty(0, 3), torch.randn(2, dtype=torch.complex64)],
    [torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)],
    [torch.randn(6, 6)[::2, ::3], torch.randn(1, 4).expand(3, 4)],
    [(torch.randn(2), [torch.randn(3), 7]), "mode", None, 0.5],
]


@pytest.mark.parametrize("inputs", SETS, ids=range(len(SETS)))
def test_what_is_written_is_read_elsewhere(inputs: list) -> None:
    plan = json.loads(json.dumps(arena.layout(inputs, [torch.zeros(1)], 3)))
    memory = arena.Inputs(plan, sealed=True)
    tensors = arena.tensors_of(inputs)
    memory.write(1, tensors)
    elsewhere = mmap.mmap(memory.fd, 0, prot=mmap.PROT_READ)
    taken = views(elsewhere, plan["inputs"], plan["input_step"], 3)[1]
    for sent, got in zip(tensors, taken, strict=True):
        assert got.dtype == sent.dtype
        assert torch.equal(got, sent)
    rebuilt: list[torch.Tensor] = []
    assert flatten(unflatten(plan["tree"], taken), rebuilt) == plan["tree"]
    memory.close()


def test_dense_strides_are_kept() -> None:
    given = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    memory = arena.Inputs(arena.layout([given], [], 1), sealed=False)
    assert memory.slots[0][0].stride() == given.stride()
    memory.close()


def test_sealed_inputs_cannot_be_mapped_to_write() -> None:
    memory = arena.Inputs(arena.layout([torch.zeros(8)], [], 1), sealed=True)
    with pytest.raises(PermissionError):
        mmap.mmap(memory.fd, 0)
    memory.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_poison_is_no_likely_answer(dtype: torch.dtype) -> None:
    plan = arena.layout([], [torch.zeros(4, dtype=dtype)], 1)
    outputs = arena.Outputs(plan)
    outputs.poison(1)
    assert (outputs.slots[0][0].double().abs() > 1e9).all()
    outputs.close()


def test_unusual_inputs_are_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        arena.layout([{"x": 1}], [], 1)
