"""std::string arguments, exceptions of the standard library, docstrings."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <stdexcept>
#include <string>

torch::Tensor activate(torch::Tensor x, const std::string& kind) {
  if (kind == "relu") return x.clamp_min(0);
  if (kind == "tanh") return torch::tanh(x);
  throw std::invalid_argument("unknown activation " + kind + " of " + std::to_string(x.dim()) + " dimensions");
}

std::string shown(torch::Tensor x) {
  std::stringstream s;
  s << x.sizes() << " " << x.scalar_type() << " " << x.device();
  return s.str();
}

int64_t at_most(std::vector<int64_t> v, int64_t i) { return v.at(i); }
"""

module = load_inline(name="strings_and_exceptions", cpp_sources=CPP, functions={"activate": "by name", "shown": "as text", "at_most": "an element"}, extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("activate", lambda: (torch.randn(9), "relu"), lambda x, k: x.relu()),
    ("activate", lambda: (torch.randn(9), "tanh"), lambda x, k: x.tanh()),
    ("shown", lambda: (torch.zeros(2, 3),), lambda x: "[2, 3] Float cpu"),
    ("at_most", lambda: ([4, 5], 1), lambda v, i: 5),
]
ERRORS = [
    ("activate", lambda: (torch.randn(9), "swish"), RuntimeError, "unknown activation swish of 1 dimensions"),
    ("activate", lambda: (torch.randn(9), 3), TypeError, "str"),
    ("at_most", lambda: ([4, 5], 2), RuntimeError, "vector"),
]
