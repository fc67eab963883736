"""Which of an answer's compiler flags are passed on. Everything else is refused: a flag can run a program."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ALLOWED = re.compile(
    r"-(?:O[0-3sg]?|Ofast|g[0-3]?|w|pthread|fopenmp(?:-simd)?|openmp"
    r"|f(?:no-)?(?:fast-math|unroll-loops|unroll-all-loops|associative-math|reciprocal-math|finite-math-only"
    r"|math-errno|trapping-math|signed-zeros|rounding-math|tree-vectorize|tree-loop-vectorize|tree-slp-vectorize"
    r"|strict-aliasing|inline-functions|omit-frame-pointer|PIC|pic|exceptions|rtti|visibility-inlines-hidden|lto)"
    r"|fvisibility=(?:default|hidden)|funsafe-math-optimizations|fprefetch-loop-arrays|ffp-contract=\w+"
    r"|m(?:arch|tune)=[\w.+-]+|m(?:no-)?(?:avx[\w.]*|sse[\w.]*|fma4?|f16c|bmi2?|popcnt|aes)|mprefer-vector-width=\w+"
    r"|std=(?:c|gnu)\+\+(?:17|20|2a|23|2b)|W(?:no-)?[\w-]+(?:=\d+)?|pedantic|D\w+(?:=[\w.\"+-]*)?|U\w+)"
)
_LIBRARIES = re.compile(
    r"-l(?:m|pthread|gomp|dl|rt|stdc\+\+|c10|torch|torch_cpu|torch_python)|-fopenmp|-pthread|-s|-O[0-3]"
)


def refused(flags: Sequence[str], *, linker: bool = False) -> list[str]:
    """The flags that are not on the list."""
    allowed = _LIBRARIES if linker else _ALLOWED
    return [f for f in flags if not allowed.fullmatch(f) or f.startswith(("-Wl", "-Wa", "-Wp"))]
