import torch
import torch.nn as nn


class Model(nn.Module):
    """Root-mean-square normalization over the channels of [batch, channels, positions]."""

    def forward(self, x):
        mean_square = torch.mean(x * x, dim=1, keepdim=True)
        return x / torch.sqrt(mean_square + 1e-5)


def get_inputs():
    return [torch.randn(8, 64, 128)]


def get_init_inputs():
    return []
