"""Numbers of every kind as arguments and results."""

import torch
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>

torch::Tensor affine(torch::Tensor x, float a, int b, bool negate) {
  auto y = x * a + b;
  return negate ? -y : y;
}
double add_double(double a, double b) { return a + b; }
bool both(bool a, bool b) { return a && b; }
int32_t narrow_int(int32_t v) { return v; }
unsigned char small(uint8_t v) { return v; }
uint64_t large(uint64_t v) { return v; }
void in_place(torch::Tensor x, double v) { x.add_(v).mul_(2); }
"""

module = load_inline(name="scalar_arguments", cpp_sources=CPP, functions=["affine", "add_double", "both", "narrow_int", "small", "large", "in_place"], extra_cflags=["-O2"])

ROUTE = "shim"
CALLS = [
    ("affine", lambda: (torch.randn(4), 2.0, 3, False), lambda x, a, b, n: x * a + b),
    ("affine", lambda: (torch.randn(4), 2, True, True), lambda x, a, b, n: -(x * a + b)),
    ("add_double", lambda: (1, 2.5), lambda a, b: 3.5),
    ("add_double", lambda: (torch.tensor(1.5), 2), lambda a, b: 3.5),
    ("both", lambda: (True, False), lambda a, b: False),
    ("both", lambda: (1, True), lambda a, b: True),
    ("both", lambda: (None, True), lambda a, b: False),
    ("narrow_int", lambda: (-(2**31),), lambda v: v),
    ("narrow_int", lambda: (torch.tensor(7),), lambda v: 7),
    ("small", lambda: (255,), lambda v: v),
    ("large", lambda: (2**64 - 1,), lambda v: v),
    ("in_place", lambda: (torch.zeros(3), 1.0), lambda x, v: None),
]
ERRORS = [
    ("narrow_int", lambda: (2**31,), TypeError, "incompatible function arguments"),
    ("narrow_int", lambda: (1.0,), TypeError, "(arg0: int)"),
    ("small", lambda: (-1,), TypeError, "incompatible function arguments"),
    ("add_double", lambda: ("1", 2), TypeError, "incompatible function arguments"),
    ("both", lambda: ("x", True), TypeError, "incompatible function arguments"),
]
