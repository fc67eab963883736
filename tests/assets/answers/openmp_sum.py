"""An OpenMP pragma, with -fopenmp, and parallel_for."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <omp.h>

double total(torch::Tensor x) {
  const float* p = x.data_ptr<float>();
  const int64_t n = x.numel();
  double sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += p[i];
  return sum;
}

torch::Tensor doubled(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto *in = x.data_ptr<float>(), *out = y.data_ptr<float>();
  at::parallel_for(0, x.numel(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) out[i] = 2 * in[i];
  });
  return y;
}

int threads() { return omp_get_max_threads() > 0; }
"""

module = load_inline(name="openmp_sum", cpp_sources=CPP, functions=["total", "doubled", "threads"], extra_cflags=["-O3", "-fopenmp"])

ROUTE = "shim"
CALLS = [
    ("total", lambda: (torch.ones(1000),), lambda x: 1000.0),
    ("doubled", lambda: (torch.randn(1000),), lambda x: 2 * x),
    ("threads", lambda: (), lambda: 1),
]
ERRORS = []
