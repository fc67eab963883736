"""A product with tiles; more than one function; flags in one string."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

constexpr int64_t TILE = 16;

static void check(const torch::Tensor& a, const torch::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "matrices only");
  TORCH_CHECK(a.size(1) == b.size(0), "inner sizes differ: ", a.size(1), " and ", b.size(0));
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), a.scalar_type(), " against ", b.scalar_type());
}

torch::Tensor matmul_tiled(torch::Tensor a, torch::Tensor b) {
  check(a, b);
  a = a.contiguous();
  b = b.contiguous();
  const auto m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::zeros({m, n}, a.options());
  auto *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>(), *pc = c.data_ptr<float>();
  for (int64_t k0 = 0; k0 < k; k0 += TILE)
    for (int64_t i = 0; i < m; i++)
      for (int64_t kk = k0; kk < std::min(k0 + TILE, k); kk++)
        for (int64_t j = 0; j < n; j++) pc[i * n + j] += pa[i * k + kk] * pb[kk * n + j];
  return c;
}

int64_t flops(torch::Tensor a, torch::Tensor b) {
  check(a, b);
  return 2 * a.size(0) * a.size(1) * b.size(1);
}
"""

module = load_inline(name="tiled_matmul", cpp_sources=CPP, functions=["matmul_tiled", "flops"], extra_cflags=["-O3 -funroll-loops"])

ROUTE = "shim"
CALLS = [
    ("matmul_tiled", lambda: (torch.randn(20, 37), torch.randn(37, 11)), torch.matmul),
    ("flops", lambda: (torch.randn(20, 37), torch.randn(37, 11)), lambda a, b: 2 * 20 * 37 * 11),
]
ERRORS = [
    ("matmul_tiled", lambda: (torch.randn(2, 3), torch.randn(2, 3)), RuntimeError, "inner sizes differ: 3 and 2"),
    ("flops", lambda: (torch.randn(2, 3), torch.randn(3, 2).double()), RuntimeError, "Float against Double"),
]
