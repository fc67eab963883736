import torch
import torch.nn as nn


class Model(nn.Module):
    """Scale and shift by column, softsign, and half of the input added."""

    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(cols) + 0.5)
        self.shift = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        y = x * self.scale + self.shift
        return y / (1 + torch.abs(y)) + 0.5 * x


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return [512]
