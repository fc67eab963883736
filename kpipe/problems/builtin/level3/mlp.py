import torch
import torch.nn as nn


class Model(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.randn(32, 128)]


def get_init_inputs():
    return [128, 256]
