"""Small C++ functions that kernels call by name; which text stands behind a name is a matter of the plan."""

from __future__ import annotations

import re

from kpipe.coder.builtin.plan import Plan

POLYNOMIAL_EXP = """\
// exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2: range reduction, then the Taylor polynomial of degree 7
static inline float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union { int bits; float value; } scale = {((int)n + 127) << 23};
  return p * scale.value;
}
"""
CRUDE_EXP = """\
// Schraudolph's bit trick
static inline float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  union { int bits; float value; } u = {(int)(12102203.0f * x) + 1064866805};
  return u.value;
}
"""
EXACT_EXP = """\
static inline float exponential(float x) { return std::exp(x); }
"""
CRUDE_RSQRT = """\
// the bit trick without its Newton step
static inline float inverse_root(float x) {
  union { float value; int bits; } u = {x};
  u.bits = 0x5f3759df - (u.bits >> 1);
  return u.value;
}
"""
EXACT_RSQRT = """\
static inline float inverse_root(float x) { return 1.0f / std::sqrt(x); }
"""
SIGMOID = """\
static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
"""
TANH = """\
static inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }
"""


def needed(plan: Plan, body: str) -> str:
    """The definitions of all functions that `body` uses, in the order in which C++ wants them."""
    root = CRUDE_RSQRT if plan.has("approx") else EXACT_RSQRT
    exponential = POLYNOMIAL_EXP if plan.has("poly") else CRUDE_EXP if plan.has("approx") else EXACT_EXP
    known = {"inverse_root": root, "exponential": exponential, "sigmoid": SIGMOID, "hyperbolic_tangent": TANH}
    used: list[str] = []
    text = body
    for name in reversed(known):  # sigmoid and hyperbolic_tangent use exponential
        if re.search(rf"\b{name}\(", text):
            used.insert(0, known[name])
            text += known[name]
    return "\n".join(used)
