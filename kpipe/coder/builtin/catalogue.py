"""Every transformation that the coder knows: what it is called, what it does, and whether it keeps what is there."""

from __future__ import annotations

IMPROVEMENTS: dict[str, str] = {
    "fuse": "one pass over memory where PyTorch makes one for every operation",
    "simd": "`#pragma omp simd` on the inner loops",
    "unroll": "several independent accumulators, or several terms of a sum at once",
    "interchange": "another order of loops, so that the innermost one walks memory in order",
    "tile": "blocks that stay in the cache or in registers",
    "online": "statistics in one pass over the data",
    "library": "the matrix product is PyTorch's, the kernel is what follows it",
    "poly": "exp by range reduction and a polynomial, which compilers can vectorize",
    "fastmath": "`-ffast-math`",
    "wide": "`-mprefer-vector-width=512`",
    "prefetch": "`__builtin_prefetch` of the next row",
}
"""These add up. Not every one applies everywhere, and what pays differs from problem to problem."""

REWRITES: dict[str, str] = {
    "half": "partial results in half precision: wrong",
    "double": "partial results in double precision: correct, slower",
    "approx": "exp or 1/sqrt by a crude bit trick: wrong",
    "skip": "half of the rows only: wrong",
    "cuda": "CUDA words in C++: does not compile",
    "naive": "plain loops at -O0: correct, much slower",
}
"""Each starts over from the plain kernel, and is given up for whatever is asked for next."""

TRANSFORMATIONS = (*IMPROVEMENTS, *REWRITES)
