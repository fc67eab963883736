"""int64, int32 and bool tensors; indices."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor gather_rows(torch::Tensor table, torch::Tensor index) {
  TORCH_CHECK(index.scalar_type() == torch::kInt64, "index must be int64");
  auto out = torch::empty({index.numel(), table.size(1)}, table.options());
  const int64_t* rows = index.data_ptr<int64_t>();
  for (int64_t i = 0; i < index.numel(); i++) {
    TORCH_CHECK_INDEX(rows[i] >= 0 && rows[i] < table.size(0), "row ", rows[i], " of ", table.size(0));
    out[i] = table[rows[i]];
  }
  return out;
}

torch::Tensor count_true(torch::Tensor mask) {
  auto total = torch::zeros({}, torch::dtype(torch::kInt32));
  const bool* p = mask.data_ptr<bool>();
  for (int64_t i = 0; i < mask.numel(); i++) *total.data_ptr<int>() += p[i];
  return total;
}
"""

module = load_inline(name="integer_tensors", cpp_sources=CPP, functions=["gather_rows", "count_true"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("gather_rows", lambda: (torch.randn(5, 3), torch.tensor([4, 0, 4])), lambda t, i: t[i]),
    ("count_true", lambda: (torch.tensor([True, False, True]),), lambda m: torch.tensor(2, dtype=torch.int32)),
]
ERRORS = [
    ("gather_rows", lambda: (torch.randn(5, 3), torch.tensor([5])), IndexError, "row 5 of 5"),
    ("gather_rows", lambda: (torch.randn(5, 3), torch.tensor([1], dtype=torch.int32)), RuntimeError, "int64"),
    ("count_true", lambda: (torch.zeros(2),), RuntimeError, "expected scalar type Bool but found Float"),
]
