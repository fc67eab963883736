import torch
import torch.nn as nn


class Model(nn.Module):
    """Mean squared error."""

    def forward(self, p, t):
        return torch.mean((p - t) ** 2)


def get_inputs():
    return [torch.randn(128, 512), torch.randn(128, 512)]


def get_init_inputs():
    return []
