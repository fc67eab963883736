import torch
import torch.nn as nn


class Model(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Parameter(torch.randn(width, hidden) / width**0.5)
        self.bias = nn.Parameter(torch.randn(hidden))
        self.down = nn.Parameter(torch.randn(hidden, width) / hidden**0.5)

    def forward(self, x):
        return torch.relu(x @ self.up + self.bias) @ self.down


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return [64, 128]
