import torch
import torch.nn as nn


class Model(nn.Module):
    """Scale, shift, clamp and square, column by column."""

    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(cols) + 0.5)
        self.shift = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        y = x * self.scale + self.shift
        y = torch.clamp(y, -1.0, 1.0)
        return y * y + 0.5 * x


def get_inputs():
    return [torch.randn(128, 1024)]


def get_init_inputs():
    return [1024]
