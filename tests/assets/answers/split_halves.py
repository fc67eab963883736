"""A list of tensors comes back; views of the input."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

std::vector<torch::Tensor> halves(torch::Tensor x, int64_t dim) {
  auto middle = x.size(dim) / 2;
  return {x.narrow(dim, 0, middle), x.narrow(dim, middle, x.size(dim) - middle)};
}

std::vector<int64_t> shape(torch::Tensor x) { return x.sizes().vec(); }
"""

module = load_inline(name="split_halves", cpp_sources=CPP, functions=["halves", "shape"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("halves", lambda: (torch.arange(12.0).reshape(3, 4), 1), lambda x, d: [x[:, :2], x[:, 2:]]),
    ("shape", lambda: (torch.zeros(3, 1, 2),), lambda x: [3, 1, 2]),
]
ERRORS = [
    ("halves", lambda: (torch.zeros(3), 4), IndexError, "Dimension out of range"),
    ("halves", lambda: (torch.zeros(3), 0.5), TypeError, "incompatible function arguments"),
]
