import torch
import torch.nn as nn


class Model(nn.Module):
    """Mean hinge loss of predictions and targets in {-1, 1}."""

    def forward(self, p, t):
        return torch.mean(torch.clamp(1 - p * t, min=0))


def get_inputs():
    return [torch.randn(128, 512), torch.randint(0, 2, (128, 512)).float() * 2 - 1]


def get_init_inputs():
    return []
