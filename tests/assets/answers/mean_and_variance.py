"""A tuple of tensors, and pairs of numbers."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

std::tuple<torch::Tensor, torch::Tensor> moments(const torch::Tensor& x) {
  const auto rows = x.size(0), n = x.size(1);
  auto mean = torch::empty({rows}, x.options()), variance = torch::empty({rows}, x.options());
  auto in = x.accessor<float, 2>();
  for (int64_t r = 0; r < rows; r++) {
    double s = 0, q = 0;
    for (int64_t c = 0; c < n; c++) s += in[r][c];
    s /= n;
    for (int64_t c = 0; c < n; c++) q += (in[r][c] - s) * (in[r][c] - s);
    mean.data_ptr<float>()[r] = s;
    variance.data_ptr<float>()[r] = q / n;
  }
  return std::make_tuple(mean, variance);
}

std::pair<double, bool> first(const torch::Tensor& x) {
  return {x.flatten()[0].item<double>(), x.numel() > 1};
}
"""

module = load_inline(name="mean_and_variance", cpp_sources=CPP, functions=["moments", "first"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("moments", lambda: (torch.randn(4, 7),), lambda x: (x.mean(1), x.var(1, unbiased=False))),
    ("moments", lambda: (torch.randn(7, 4).t(),), lambda x: (x.mean(1), x.var(1, unbiased=False))),
    ("first", lambda: (torch.tensor([[2.5, 1.0]]),), lambda x: (2.5, True)),
]
ERRORS = [
    ("moments", lambda: (torch.randn(4),), IndexError, "Dimension out of range"),
    ("moments", lambda: (torch.randn(4, 4, 4),), RuntimeError, "TensorAccessor expected 2 dims but tensor has 3"),
]
