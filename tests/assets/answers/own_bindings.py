"""The source binds itself with pybind11: the stock build makes it."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor add(torch::Tensor a, torch::Tensor b, double alpha) { return a + alpha * b; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("add", &add, "sum", py::arg("a"), py::arg("b"), py::arg("alpha") = 1.0);
}
"""

module = load_inline(name="own_bindings", cpp_sources=CPP, functions=None, extra_cflags=["-O1"])

ROUTE = "stock"
CALLS = [
    ("add", lambda: (torch.ones(2), torch.ones(2)), lambda a, b: a + b),
]
ERRORS = [
    ("add", lambda: (torch.ones(2), 1), TypeError, "incompatible function arguments"),
]
