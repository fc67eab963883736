"""AVX intrinsics, with a plain loop where there is no AVX2."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

torch::Tensor twice(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* in = x.data_ptr<float>();
  float* out = y.data_ptr<float>();
  int64_t i = 0, n = x.numel();
#ifdef __AVX2__
  for (; i + 8 <= n; i += 8) {
    __m256 v = _mm256_loadu_ps(in + i);
    _mm256_storeu_ps(out + i, _mm256_add_ps(v, v));
  }
#endif
  for (; i < n; i++) out[i] = in[i] + in[i];
  return y;
}
"""

module = load_inline(name="intrinsics", cpp_sources=CPP, functions=["twice"], extra_cflags=["-O3", "-march=native"])

ROUTE = "shim"
CALLS = [
    ("twice", lambda: (torch.randn(37),), lambda x: 2 * x),
]
ERRORS = []
