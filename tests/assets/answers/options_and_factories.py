"""options(), devices, dtypes, factories."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

std::vector<torch::Tensor> made(torch::Tensor x) {
  auto like = x.options();
  auto wide = torch::TensorOptions().dtype(torch::kFloat64).device(x.device()).requires_grad(false);
  return {torch::zeros({2, 3}, like), torch::ones(x.sizes(), wide), torch::full({2}, 1.5, like.dtype(torch::kDouble)),
          torch::arange(5), torch::arange(0, 6, 2, torch::kFloat32), torch::empty({2, 0}, torch::kInt),
          torch::full_like(x, 3), torch::zeros_like(x, torch::kLong), torch::eye(3, torch::dtype<double>()),
          torch::linspace(0, 1, 5), x.new_ones({2}), torch::from_blob(x.data_ptr(), {1}, like).clone()};
}

bool on_cpu(torch::Tensor x) { return x.is_cpu() && !x.is_cuda() && x.device() == torch::kCPU && x.get_device() == -1; }
torch::Tensor as_double(torch::Tensor x) { return x.to(torch::kFloat64) + x.to(torch::kInt).to(x.dtype()); }
"""

module = load_inline(name="options_and_factories", cpp_sources=CPP, functions=["made", "on_cpu", "as_double"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    (
        "made",
        lambda: (torch.arange(4.0),),
        lambda x: [
            torch.zeros(2, 3),
            torch.ones(4).double(),
            torch.full((2,), 1.5).double(),
            torch.arange(5),
            torch.arange(0, 6, 2).float(),
            torch.empty(2, 0, dtype=torch.int32),
            torch.full((4,), 3.0),
            torch.zeros(4, dtype=torch.int64),
            torch.eye(3).double(),
            torch.linspace(0, 1, 5),
            torch.ones(2),
            torch.zeros(1),
        ],
    ),
    ("on_cpu", lambda: (torch.ones(1),), lambda x: True),
    ("as_double", lambda: (torch.tensor([1.5]),), lambda x: torch.tensor([2.5]).double()),
]
ERRORS = []
