import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, x, y):
        return x + y
