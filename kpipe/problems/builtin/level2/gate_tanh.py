import torch
import torch.nn as nn


class Model(nn.Module):
    """A tanh gate: tanh(x) * sigmoid(g)."""

    def forward(self, x, g):
        return torch.tanh(x) * torch.sigmoid(g)


def get_inputs():
    return [torch.randn(64, 512), torch.randn(64, 512)]


def get_init_inputs():
    return []
