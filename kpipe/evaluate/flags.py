"""Which of an answer's compiler flags are passed on. A flag that is not listed is refused: some run programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMPILER = re.compile(
    r"-(?:O[0-3sgz]?|Ofast|g[0-3]?|w|pthread|pedantic|fopenmp(?:-simd)?|ansi"
    r"|f(?:no-)?(?:fast-math|unroll-loops|unroll-all-loops|associative-math|reciprocal-math|finite-math-only"
    r"|math-errno|trapping-math|signed-zeros|signaling-nans|rounding-math|tree-vectorize|tree-loop-vectorize"
    r"|tree-slp-vectorize|strict-aliasing|inline|inline-functions|omit-frame-pointer|exceptions|rtti|PIC|pic|PIE|pie"
    r"|visibility-inlines-hidden|unsafe-math-optimizations|prefetch-loop-arrays|stack-protector|plt|gcse|ivopts"
    r"|semantic-interposition|split-loops|loop-interchange|loop-nest-optimize|tree-loop-distribution|wrapv"
    r"|strict-overflow|delete-null-pointer-checks|ipa-pta|data-sections|function-sections)"
    r"|fvisibility=(?:default|hidden)|ffp-contract=(?:fast|on|off)|fexcess-precision=(?:fast|standard)"
    r"|fvect-cost-model=\w+|fsimd-cost-model=\w+|ftemplate-depth=\d{1,4}|finline-limit=\d+|falign-\w+(?:=\d+)?"
    r"|m(?:arch|tune|cpu)=[\w.+-]+|m(?:no-)?(?:avx[\w.]*|sse[\w.]*|ssse3|fma4?|f16c|bmi2?|popcnt|aes|lzcnt|amx[\w-]*)"
    r"|mprefer-vector-width=\w+|mveclibabi=svml|std=(?:c|gnu)\+\+(?:17|20|2a|23|2b)"
    r"|W(?:no-)?[a-z][\w+-]*(?:=\d+)?|[DU]\w+(?:=[\w.+-]*)?)"
)
_LINKER = re.compile(
    r"-l(?:m|pthread|gomp|dl|rt|stdc\+\+|c10|torch|torch_cpu|torch_python|c10_cuda|torch_cuda|cudart|cublas|cublasLt"
    r"|cuda|curand|cufft|cusparse|cusolver)|-fopenmp|-pthread|-s|-O[0-3]?|-Wl,(?:-O[0-3]|--as-needed|--no-as-needed|-s)"
)
_CUDA = re.compile(
    r"-O[0-3]|-g|-G|-lineinfo|--?generate-line-info|--?use_fast_math|--?expt-(?:relaxed-constexpr|extended-lambda)"
    r"|--?extended-lambda|--?std=c\+\+(?:17|20|23)|-[DU]\w+(?:=[\w.+-]*)?|--?maxrregcount=\d+|--?threads=?\d+"
    r"|--?(?:fmad|ftz|prec-div|prec-sqrt|rdc|restrict)(?:=(?:true|false))?|--?arch=(?:sm|compute)_\d+a?|-w"
    r"|--?gencode=arch=compute_\d+[af]?,code=\[?(?:(?:sm|compute)_\d+[af]?,?)+\]?|--?(?:resource-usage|keep-device-functions)"
    r"|--?default-stream=(?:legacy|per-thread|null)|--?diag-suppress=[\d,]+|--?extra-device-vectorization"
    r"|--?(?:ptxas-options|Xptxas)=(?:-v|-O[0-3]|-dlcm=\w+|--verbose|-warn-spills|--warn-on-spills|-allow-expensive-optimizations=true)"
)
_WITH_VALUE = {
    "-Xptxas": "-Xptxas=",
    "--ptxas-options": "-Xptxas=",
    "-gencode": "-gencode=",
    "-arch": "-arch=",
}
_WITH_VALUE |= {
    "-maxrregcount": "-maxrregcount=",
    "--maxrregcount": "-maxrregcount=",
    "--threads": "--threads=",
}
_HOST = ("-Xcompiler", "--compiler-options")
_HARMLESS = re.compile(r"-v|--verbose|-pipe|-fdiagnostics-[\w=-]+|-H|-ftime-report|-Q|-save-temps|-###")


_REAL_HEADERS_MATTER = re.compile(
    r"-Werror.*|-pedantic.*|-ansi|-std=.*|-fno-(?:exceptions|rtti)|-[DU](?:TORCH|C10|AT_|PYBIND|CAFFE|USE_|_).*"
)


def concern_torch(flags: Sequence[str], standard: str) -> bool:
    """Can a build with these flags end differently with torch's own headers than with the shim's?"""
    return any(_REAL_HEADERS_MATTER.fullmatch(flag) and flag != standard for flag in flags)


def compiler_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags for g++ that are passed on, and those that are refused; what only makes it talk is left out."""
    return _sorted(flags, _COMPILER)


def linker_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    return _sorted(flags, _LINKER)


def cuda_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags for nvcc; those that it hands to the host compiler must be allowed there."""
    good: list[str] = []
    bad: list[str] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if flag in _WITH_VALUE and rest:
            flag = _WITH_VALUE[flag] + rest.pop(0)
        host, _, value = flag.partition("=")
        if host in _HOST and (value or rest):
            options = (value or rest.pop(0)).strip("'\"").split(",")
            passed, wrong = compiler_flags(options)
            good += [f"-Xcompiler={option}" for option in passed]
            bad += wrong
        elif _CUDA.fullmatch(flag):
            good.append(flag)
        elif not _HARMLESS.fullmatch(flag):
            bad.append(flag)
    return good, bad


def _sorted(flags: Sequence[str], allowed: re.Pattern[str]) -> tuple[list[str], list[str]]:
    good = [f for f in flags if allowed.fullmatch(f)]
    return good, [f for f in flags if not allowed.fullmatch(f) and not _HARMLESS.fullmatch(f)]
