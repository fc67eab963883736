"""From a suggestion's words to the transformation that it asks for."""

from __future__ import annotations

import re

RULES: dict[str, str] = {
    "fuse": r"\bfus(e|ed|ing|ion)\b|\bmerge\b|single pass|one pass over|temporar",
    "simd": r"\bsimd\b|vectori[sz]",
    "tile": r"\btil(e|es|ed|ing)\b|cache block|\bblocking\b",
    "interchange": r"interchange|loop order|reorder\w* the|stride-?1|contiguous",
    "unroll": r"unroll|(multiple|independent|several) (accumulators|partial sums)",
    "poly": r"polynomial|minimax|range reduction|chebyshev",
    "fastmath": r"fast-?math|relaxed floating|reassociat",
    "online": r"\bonline\b|welford|running (sum|max)|one-?pass statistic",
    "prefetch": r"prefetch",
    "library": r"\blibrary\b|\bblas\b|\bmkl\b|delegate",
    "wide": r"512-?bit|avx-?512|wide(st)? (vector|register)",
    "half": r"half[- ]precision|float16|\bfp16\b|\bbf16\b|bfloat16",
    "double": r"double[- ]precision|float64|\bfp64\b",
    "approx": r"bit trick|approximat|crude|rough",
    "skip": r"\bskip|subsampl|every other|drop half",
    "cuda": r"\bcuda\b|shared memory|\bwarp|__syncthreads|thread ?block",
    "naive": r"naive|plain loops|debug build|-o0\b",
}
_COMPILED = {name: re.compile(pattern, re.I) for name, pattern in RULES.items()}


def strategy_in(suggestion: str) -> str | None:
    """The transformation that is mentioned first, or None when the text names none."""
    hits = [(m.start(), name) for name, rx in _COMPILED.items() if (m := rx.search(suggestion))]
    return min(hits)[1] if hits else None
