"""AT_DISPATCH_FLOATING_TYPES: float and double work, integers are refused by torch."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

template <typename scalar_t> void relu_loop(const scalar_t* in, scalar_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = in[i] > scalar_t(0) ? in[i] : scalar_t(0);
}

torch::Tensor my_relu(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "my_relu", ([&] {
    relu_loop<scalar_t>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  return y;
}

torch::Tensor add_one(torch::Tensor x) {
  auto y = x.clone();
  AT_DISPATCH_ALL_TYPES(y.scalar_type(), "add_one", [&] {
    auto* p = y.data_ptr<scalar_t>();
    for (int64_t i = 0; i < y.numel(); i++) p[i] += 1;
  });
  return y;
}
"""

module = load_inline(name="dispatched_relu", cpp_sources=CPP, functions=["my_relu", "add_one"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("my_relu", lambda: (torch.randn(50),), torch.relu),
    ("my_relu", lambda: (torch.randn(50).double(),), torch.relu),
    ("add_one", lambda: (torch.arange(5, dtype=torch.int16),), lambda x: x + 1),
    ("add_one", lambda: (torch.arange(5, dtype=torch.uint8),), lambda x: x + 1),
    ("add_one", lambda: (torch.arange(5.0),), lambda x: x + 1),
]
ERRORS = [
    ("my_relu", lambda: (torch.arange(5),), NotImplementedError, "\"my_relu\" not implemented for 'Long'"),
    ("add_one", lambda: (torch.ones(5, dtype=torch.bool),), NotImplementedError, "not implemented for 'Bool'"),
]
