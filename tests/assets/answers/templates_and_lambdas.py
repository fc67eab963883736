"""Templates, lambdas, std::function-like code, several namespaces."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <array>
#include <numeric>

namespace {
template <class F> torch::Tensor map(const torch::Tensor& x, F f) {
  auto y = torch::empty_like(x);
  std::transform(x.data_ptr<float>(), x.data_ptr<float>() + x.numel(), y.data_ptr<float>(), f);
  return y;
}
struct Swish {
  float beta;
  float operator()(float v) const { return v / (1.0f + std::exp(-beta * v)); }
};
}  // namespace

using torch::Tensor;
Tensor swish(Tensor x, double beta) { return map(x, Swish{static_cast<float>(beta)}); }
Tensor cube(Tensor x) { return map(x, [](float v) { return v * v * v; }); }
int64_t product(Tensor x) {
  auto s = x.sizes();
  return std::accumulate(s.begin(), s.end(), int64_t{1}, std::multiplies<int64_t>());
}
"""

module = load_inline(name="templates_and_lambdas", cpp_sources=CPP, functions=["swish", "cube", "product"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("swish", lambda: (torch.randn(40), 1.0), lambda x, b: torch.nn.functional.silu(x)),
    ("cube", lambda: (torch.randn(40),), lambda x: x**3),
    ("product", lambda: (torch.zeros(2, 3, 4),), lambda x: 24),
]
ERRORS = []
