"""What the built-in policy can say at first: sentences about transformations, good, useless and harmful alike.

The warm start draws the transformation uniformly, so the policy begins without a preference; which of them pay,
and on which problem, it has to learn. The words are the ones that `kpipe.coder.builtin` reads.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

TEMPLATES: dict[str, tuple[str, ...]] = {
    "fuse": (
        "Fuse the {op} steps into one loop.",
        "Remove temporaries from the {op}.",
        "Do the {op} in a single pass over memory.",
        "Merge all {op} operations and keep no temporaries.",
    ),
    "simd": (
        "Vectorize the {op} {inner}.",
        "Put a SIMD pragma on the {op} {inner}.",
        "Mark the {op} {inner} as vectorizable.",
        "Use SIMD instructions for the {op}.",
    ),
    "tile": (
        "Tile the {op} loops for the cache.",
        "Use cache blocking in the {op}.",
        "Apply tiling to the {op} {inner}.",
        "Work on the {op} in cache blocks.",
    ),
    "interchange": (
        "Interchange the {op} loops.",
        "Change the loop order of the {op}.",
        "Give the {op} a contiguous {inner}.",
        "Reorder the {op} loops for stride-1 access.",
    ),
    "unroll": (
        "Unroll the {op} {inner}.",
        "Use multiple accumulators in the {op}.",
        "Keep independent accumulators for the {op}.",
        "Unroll the {op} with several partial sums.",
    ),
    "poly": (
        "Evaluate the {op} exponential by a polynomial.",
        "Use range reduction in the {op}.",
        "Replace libm calls of the {op} by a polynomial.",
        "Use a minimax fit inside the {op}.",
    ),
    "fastmath": (
        "Allow fast-math in the {op}.",
        "Let the compiler reassociate the {op} sums.",
        "Use relaxed floating point rules for the {op}.",
        "Build the {op} with fast-math.",
    ),
    "online": (
        "Use an online statistic in the {op}.",
        "Apply a Welford update in the {op}.",
        "Keep a running sum in the {op}.",
        "Compute the {op} statistics online.",
    ),
    "prefetch": (
        "Prefetch the next {op} {rows}.",
        "Add software prefetch to the {op} {inner}.",
        "Insert prefetch instructions in the {op}.",
        "Prefetch {rows} ahead in the {op}.",
    ),
    "library": (
        "Delegate the {op} to the library.",
        "Call the vendor BLAS for the {op}.",
        "Let the library do the {op} product.",
        "Use a library call in the {op}.",
    ),
    "wide": (
        "Prefer 512-bit vectors in the {op}.",
        "Use wide registers for the {op} {inner}.",
        "Allow AVX-512 for the {op}.",
        "Use the widest wide registers in the {op}.",
    ),
    "half": (
        "Accumulate the {op} in half precision.",
        "Store {op} partial results as float16.",
        "Use fp16 arithmetic in the {op}.",
        "Do the {op} in half precision.",
    ),
    "double": (
        "Accumulate the {op} in double precision.",
        "Use float64 for the {op}.",
        "Switch the {op} to fp64.",
        "Do the {op} in double precision.",
    ),
    "approx": (
        "Use a crude bit trick in the {op}.",
        "Replace the {op} math by a cheap approximation.",
        "A rough estimate is enough for the {op}.",
        "Make the {op} a crude estimate.",
    ),
    "skip": (
        "Skip half of the {op} {rows}.",
        "Subsample the {op} {rows}.",
        "Process every other part of the {op}.",
        "Skip some {rows} of the {op}.",
    ),
    "cuda": (
        "Stage the {op} data in shared memory.",
        "Use warp shuffles in the {op}.",
        "Add __syncthreads to the {op}.",
        "Keep {op} {rows} in shared memory.",
    ),
    "naive": (
        "Rewrite the {op} as plain loops.",
        "Use a naive debug build of the {op}.",
        "Compile the {op} with -O0.",
        "Keep the {op} naive.",
    ),
}
STRATEGIES: tuple[str, ...] = tuple(TEMPLATES)
ROWS = ("rows", "batches", "slices")
INNER = ("inner loop", "hot loop", "main loop")


def suggestion(strategy: str, problem_name: str, rng: random.Random) -> str:
    """One sentence that names `strategy` in the words of `problem_name`. Raises KeyError for an unknown strategy."""
    return rng.choice(TEMPLATES[strategy]).format(
        op=operation(problem_name), rows=rng.choice(ROWS), inner=rng.choice(INNER)
    )


def operation(problem_name: str) -> str:
    """A problem's name as it is said: underscores are blanks."""
    return problem_name.replace("_", " ")


def all_sentences(problem_names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every (strategy, sentence) that `suggestion` can produce for these problems."""
    for (strategy, templates), name in itertools.product(TEMPLATES.items(), problem_names):
        for template in templates:
            for rows in ROWS if "{rows}" in template else ROWS[:1]:
                for inner in INNER if "{inner}" in template else INNER[:1]:
                    yield strategy, template.format(op=operation(name), rows=rows, inner=inner)
