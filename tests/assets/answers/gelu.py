"""Elementwise, float32 only, contiguous only."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <cmath>

torch::Tensor gelu(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  TORCH_CHECK(x.dtype() == torch::kFloat32, "x must be float32, not ", x.dtype());
  auto y = torch::empty_like(x);
  const float* in = x.data_ptr<float>();
  float* out = y.data_ptr<float>();
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; i++) out[i] = 0.5f * in[i] * (1.0f + std::erf(in[i] * 0.70710678f));
  return y;
}
"""

module = load_inline(name="gelu", cpp_sources=CPP, functions=["gelu"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("gelu", lambda: (torch.randn(3, 50),), torch.nn.functional.gelu),
]
ERRORS = [
    ("gelu", lambda: (torch.randn(4, 6).t(),), RuntimeError, "x must be contiguous"),
    ("gelu", lambda: (torch.randn(4).double(),), RuntimeError, "x must be float32, not double"),
    ("gelu", lambda: (3,), TypeError, "incompatible function arguments"),
    ("gelu", lambda: (None,), TypeError, "incompatible function arguments"),
    ("gelu", lambda: (), TypeError, "incompatible function arguments"),
]
