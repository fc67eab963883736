import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax over the last dimension."""

    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(128, 1024)]


def get_init_inputs():
    return []
