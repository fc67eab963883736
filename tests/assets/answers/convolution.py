"""A direct convolution with accessors of four dimensions, and torch's own beside it."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor direct(torch::Tensor x, torch::Tensor w) {
  const auto batch = x.size(0), out_c = w.size(0), in_c = w.size(1), kh = w.size(2), kw = w.size(3);
  const auto height = x.size(2) - kh + 1, width = x.size(3) - kw + 1;
  auto y = torch::zeros({batch, out_c, height, width}, x.options());
  auto in = x.accessor<float, 4>();
  auto weight = w.accessor<float, 4>();
  auto out = y.accessor<float, 4>();
  for (int64_t b = 0; b < batch; b++)
    for (int64_t o = 0; o < out_c; o++)
      for (int64_t c = 0; c < in_c; c++)
        for (int64_t i = 0; i < height; i++)
          for (int64_t j = 0; j < width; j++)
            for (int64_t u = 0; u < kh; u++)
              for (int64_t v = 0; v < kw; v++) out[b][o][i][j] += in[b][c][i + u][j + v] * weight[o][c][u][v];
  return y;
}

torch::Tensor library(torch::Tensor x, torch::Tensor w) { return torch::conv2d(x, w); }
"""

module = load_inline(name="convolution", cpp_sources=CPP, functions=["direct", "library"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("direct", lambda: (torch.randn(2, 3, 7, 6), torch.randn(4, 3, 3, 2)), torch.nn.functional.conv2d),
    ("library", lambda: (torch.randn(2, 3, 7, 6), torch.randn(4, 3, 3, 2)), torch.nn.functional.conv2d),
]
ERRORS = []
