"""dtypes and devices of torch as arguments and results."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor filled(std::vector<int64_t> shape, double value, at::ScalarType dtype) {
  return torch::full(shape, value, torch::TensorOptions().dtype(dtype));
}
at::ScalarType dtype_of(torch::Tensor x) { return x.scalar_type(); }
torch::Device device_of_it(torch::Tensor x) { return x.device(); }
"""

module = load_inline(name="dtypes_as_arguments", cpp_sources=CPP, functions=["filled", "dtype_of", "device_of_it"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("filled", lambda: ([2, 2], 3, torch.int32), lambda s, v, d: torch.full((2, 2), 3, dtype=torch.int32)),
    ("filled", lambda: ([1], 2.5, torch.float64), lambda s, v, d: torch.full((1,), 2.5, dtype=torch.float64)),
    ("filled", lambda: ([1], 1, torch.bool), lambda s, v, d: torch.ones(1, dtype=torch.bool)),
    ("dtype_of", lambda: (torch.zeros(1).half(),), lambda x: torch.float16),
    ("device_of_it", lambda: (torch.zeros(1),), lambda x: torch.device("cpu")),
]
ERRORS = [
    ("filled", lambda: ([2], 1, 3), TypeError, "torch.dtype"),
]
