import torch
import torch.nn as nn


class Model(nn.Module):
    """GELU in its tanh form, as in GPT-2: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    def forward(self, x):
        cube = torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * cube)))


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
