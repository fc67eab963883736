"""Optional arguments: None and a tensor."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor scale_add(torch::Tensor x, c10::optional<torch::Tensor> bias, std::optional<double> scale) {
  auto y = x.contiguous().clone();
  const int64_t n = y.size(-1), rows = y.numel() / n;
  float* p = y.data_ptr<float>();
  const float s = scale.has_value() ? static_cast<float>(scale.value()) : 1.0f;
  const float* b = bias.has_value() ? bias->data_ptr<float>() : nullptr;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < n; i++) p[r * n + i] = s * p[r * n + i] + (b ? b[i] : 0.0f);
  return y;
}

torch::Tensor nothing() { return torch::Tensor(); }
"""

module = load_inline(name="optional_bias", cpp_sources=CPP, functions=["scale_add", "nothing"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("scale_add", lambda: (torch.randn(4, 5), None, None), lambda x, b, s: x),
    ("scale_add", lambda: (torch.randn(4, 5), torch.randn(5), 2.5), lambda x, b, s: x * s + b),
    ("scale_add", lambda: (torch.randn(4, 5), torch.randn(5), 3), lambda x, b, s: x * s + b),
    ("nothing", lambda: (), lambda: None),
]
ERRORS = [
    ("scale_add", lambda: (torch.randn(4, 5), 1.0, None), TypeError, "Optional[torch.Tensor]"),
]
