import torch
import torch.nn as nn


class Model(nn.Module):
    """A gated feed-forward block: down(relu(gate(x)) * up(x))."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(32, 96)]


def get_init_inputs():
    return [96, 160]
