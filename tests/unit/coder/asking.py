"""A problem and requests for tests of coders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpipe.coder.base import CoderRequest
from kpipe.coder.openai import OpenAICoder
from kpipe.domain.problem import Problem

KEY = "sk-loopback-0123456789abcdef"
REFERENCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8)]


def get_init_inputs():
    return []
"""
PROBLEM = Problem("test", 1, "plus_one", "train", REFERENCE)

MakeCoder = Callable[..., OpenAICoder]


def request(suggestion: str = "Use vector instructions.", **kwargs: Any) -> CoderRequest:
    return CoderRequest(**{"problem": PROBLEM, "kernel": REFERENCE, "suggestion": suggestion, **kwargs})
