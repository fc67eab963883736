"""A reduction along rows, with a size check that names the shape."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <algorithm>
#include <limits>

at::Tensor row_softmax(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "expected 2 dimensions, got ", x.dim(), " of sizes ", x.sizes());
  auto rows = x.size(0), columns = x.size(-1);
  at::Tensor y = at::empty({rows, columns}, x.options());
  auto in = x.contiguous();
  const float* p = in.data_ptr<float>();
  float* q = y.data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    float peak = -std::numeric_limits<float>::infinity(), total = 0.f;
    for (int64_t c = 0; c < columns; ++c) peak = std::max(peak, p[r * columns + c]);
    for (int64_t c = 0; c < columns; ++c) total += q[r * columns + c] = std::exp(p[r * columns + c] - peak);
    for (int64_t c = 0; c < columns; ++c) q[r * columns + c] /= total;
  }
  return y;
}
"""

module = load_inline(name="row_softmax", cpp_sources=CPP, functions=["row_softmax"], extra_cflags=["-O3", "-march=native"])

ROUTE = "shim"
CALLS = [
    ("row_softmax", lambda: (torch.randn(5, 33),), lambda x: x.softmax(-1)),
    ("row_softmax", lambda: (torch.randn(33, 5).t(),), lambda x: x.softmax(-1)),
]
ERRORS = [
    ("row_softmax", lambda: (torch.randn(2, 3, 4),), RuntimeError, "got 3 of sizes [2, 3, 4]"),
]
