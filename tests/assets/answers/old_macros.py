"""CHECK_ macros as tutorials write them, and x.type()."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/torch.h>

#define CHECK_CPU(x) TORCH_CHECK(!x.type().is_cuda(), #x " must be a CPU tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CPU(x); CHECK_CONTIGUOUS(x)

torch::Tensor hinge(torch::Tensor predictions, torch::Tensor targets) {
  CHECK_INPUT(predictions);
  CHECK_INPUT(targets);
  AT_ASSERTM(predictions.numel() == targets.numel(), "sizes differ");
  const float *p = predictions.data_ptr<float>(), *t = targets.data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < predictions.numel(); i++) sum += std::max(0.0f, 1.0f - p[i] * t[i]);
  return torch::full({}, sum / predictions.numel(), predictions.options());
}
"""

module = load_inline(name="old_macros", cpp_sources=CPP, functions=["hinge"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("hinge", lambda: (torch.randn(30), torch.randn(30).sign()), lambda p, t: (1 - p * t).clamp(min=0).mean()),
]
ERRORS = [
    ("hinge", lambda: (torch.randn(4), torch.randn(5)), RuntimeError, "sizes differ"),
    ("hinge", lambda: (torch.randn(4)[::2], torch.randn(2)), RuntimeError, "predictions must be contiguous"),
]
