import torch
import torch.nn as nn


class Model(nn.Module):
    """Swish: x * sigmoid(x)."""

    def forward(self, x):
        return x * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(128, 1024)]


def get_init_inputs():
    return []
