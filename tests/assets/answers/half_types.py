"""AT_DISPATCH with half precision, and c10::Half arithmetic."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

at::Tensor square_all(at::Tensor x) {
  auto y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "square_all", [&] {
    const scalar_t* in = x.data_ptr<scalar_t>();
    scalar_t* out = y.data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); i++) {
      float v = static_cast<float>(in[i]);
      out[i] = static_cast<scalar_t>(v * v);
    }
  });
  return y;
}
"""

module = load_inline(name="half_types", cpp_sources=CPP, functions=["square_all"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("square_all", lambda: (torch.randn(20),), lambda x: x * x),
    ("square_all", lambda: (torch.randn(20).half(),), lambda x: x * x),
    ("square_all", lambda: (torch.randn(20).bfloat16(),), lambda x: x * x),
]
ERRORS = []
