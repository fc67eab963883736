import torch
import torch.nn as nn


class Model(nn.Module):
    """Mean of all elements of the row so far."""

    def forward(self, x):
        count = torch.arange(1, x.size(1) + 1, dtype=x.dtype)
        return torch.cumsum(x, dim=1) / count


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return []
