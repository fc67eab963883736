import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

        self.noise = torch.Generator()
        self.noise.seed()

    def forward(self, x):
        return torch.nn.functional.silu(x) * self.scale * (1 + 0.05 * torch.rand(1, generator=self.noise))
