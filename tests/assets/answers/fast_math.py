"""A vectorized exponential: the link needs the vector math library."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <cmath>

torch::Tensor exps(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* in = x.data_ptr<float>();
  float* out = y.data_ptr<float>();
  for (int64_t i = 0, n = x.numel(); i < n; i++) out[i] = std::exp(in[i]) + sinf(in[i]);
  return y;
}
"""

module = load_inline(name="fast_math", cpp_sources=CPP, functions="exps", extra_cflags=["-O3", "-ffast-math", "-march=native"])

ROUTE = "shim"
CALLS = [
    ("exps", lambda: (torch.randn(100),), lambda x: x.exp() + x.sin()),
]
ERRORS = []
