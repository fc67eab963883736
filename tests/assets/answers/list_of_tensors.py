"""std::vector<at::Tensor> and other lists as arguments."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

at::Tensor sum_all(std::vector<at::Tensor> parts) {
  TORCH_CHECK(!parts.empty(), "nothing to add");
  auto out = parts[0].clone();
  for (size_t i = 1; i < parts.size(); ++i) out += parts[i];
  return out;
}

at::Tensor joined(const std::vector<torch::Tensor>& parts, int64_t dim) { return torch::cat(parts, dim); }

at::Tensor reshaped(torch::Tensor x, std::vector<int64_t> shape) { return x.reshape(shape); }
"""

module = load_inline(name="list_of_tensors", cpp_sources=CPP, functions=["sum_all", "joined", "reshaped"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("sum_all", lambda: ([torch.ones(2), torch.ones(2), torch.ones(2)],), lambda p: p[0] * 3),
    ("sum_all", lambda: ((torch.ones(2), torch.ones(2)),), lambda p: p[0] * 2),
    ("joined", lambda: ([torch.ones(2, 1), torch.zeros(2, 2)], 1), torch.cat),
    ("reshaped", lambda: (torch.arange(6), [2, -1]), lambda x, s: x.reshape(2, 3)),
]
ERRORS = [
    ("sum_all", lambda: ([],), RuntimeError, "nothing to add"),
    ("sum_all", lambda: ([torch.ones(2), 1],), TypeError, "list[torch.Tensor]"),
    ("reshaped", lambda: (torch.arange(6), [4, -1]), RuntimeError, "invalid for input of size 6"),
]
