import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cmath>

torch::Tensor forward(torch::Tensor x, torch::Tensor scale) {
    auto result = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    const float* s = scale.data_ptr<float>();
    float* out = result.data_ptr<float>();
    const int64_t width = x.size(1);
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] / (1.0f + std::exp(-in[i])) * s[i % width];
    return result;
}
"""

kernel = load_inline(name="silu_kernel", cpp_sources=SOURCE, functions=["forward"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return kernel.forward(x, self.scale)
