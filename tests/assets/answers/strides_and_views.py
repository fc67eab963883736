"""Strided access by hand, sizes as arrays."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor transpose_copy(const torch::Tensor& x) {
  auto sizes = x.sizes();
  auto strides = x.strides();
  TORCH_CHECK(sizes.size() == 2 && x.ndimension() == 2);
  auto y = torch::empty({sizes[1], sizes[0]}, x.options());
  const float* p = x.data_ptr<float>();
  float* q = y.mutable_data_ptr<float>();
  for (auto i : c10::irange(sizes[0]))
    for (auto j : c10::irange(sizes[1])) q[j * sizes[0] + i] = p[i * strides[0] + j * strides[1]];
  return y;
}

std::vector<torch::Tensor> views(torch::Tensor x) {
  return {x.view({-1}), x.t(), x.permute({1, 0}).contiguous(), x.unsqueeze(0).expand({2, -1, -1}), x.slice(1, 1, 3),
          x.reshape({x.size(1), x.size(0)}), x.squeeze(), x.flatten()};
}
"""

module = load_inline(name="strides_and_views", cpp_sources=CPP, functions=["transpose_copy", "views"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("transpose_copy", lambda: (torch.randn(3, 5),), lambda x: x.t().contiguous()),
    ("transpose_copy", lambda: (torch.randn(6, 10)[::2, ::3],), lambda x: x.t().contiguous()),
    (
        "views",
        lambda: (torch.randn(3, 4),),
        lambda x: [x.view(-1), x.t(), x.t().contiguous(), x.expand(2, 3, 4), x[:, 1:3], x.reshape(4, 3), x, x.view(-1)],
    ),
]
ERRORS = [
    ("transpose_copy", lambda: (torch.randn(3),), RuntimeError, "Expected sizes.size() == 2"),
]
