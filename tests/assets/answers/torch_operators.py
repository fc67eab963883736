"""Operators of torch in C++: sums, products, softmax, indexing, comparison, assignment."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, double scale) {
  auto scores = torch::matmul(q, k.transpose(-2, -1)) * scale;
  return at::matmul(torch::softmax(scores, -1), v);
}

std::vector<torch::Tensor> reductions(torch::Tensor x) {
  return {torch::sum(x), x.sum(1), x.mean({0, 1}, true), x.amax(0), std::get<0>(x.max(1)), x.argmax(-1),
          x.std(), x.norm(), torch::logsumexp(x, {1})};
}

torch::Tensor edges(torch::Tensor x) {
  auto y = x.clone();
  y[0] = 1.0;
  y[1] = x[0] - 2 * x[1] / 3;
  y.select(0, 2).fill_(7);
  return torch::where(y > 0, 1.0 / (y + 1e-3), -y);
}
"""

module = load_inline(name="torch_operators", cpp_sources=CPP, functions=["attention", "reductions", "edges"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    (
        "attention",
        lambda: (torch.randn(2, 4, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 3), 0.35),
        lambda q, k, v, s: (q @ k.mT * s).softmax(-1) @ v,
    ),
    (
        "reductions",
        lambda: (torch.randn(4, 6),),
        lambda x: [x.sum(), x.sum(1), x.mean((0, 1), True), x.amax(0), x.max(1)[0], x.argmax(-1)]
        + [x.std(), x.norm(), x.logsumexp(1)],
    ),
    (
        "edges",
        lambda: (torch.randn(4, 3),),
        lambda x: (
            lambda y: torch.where(y > 0, 1 / (y + 1e-3), -y)
        )(torch.stack([torch.ones(3), x[0] - 2 * x[1] / 3, torch.full((3,), 7.0), x[3]])),
    ),
]
ERRORS = [
    ("attention", lambda: (torch.ones(2, 3), torch.ones(4, 5), torch.ones(4, 5), 1.0), RuntimeError, "shapes"),
]
