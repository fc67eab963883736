"""Whose mistake is it? What is plainly the author's needs no stock build; everything else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpipe.evaluate import shim_build
from kpipe.evaluate.blame import plainly_the_authors
from kpipe.evaluate.build import BuildCache, ensure_runtime, request_from_call
from kpipe.evaluate.toolchain import find_toolchain

FRAME = """
#include <torch/extension.h>
%s
torch::Tensor forward(torch::Tensor X) {
  auto Y = torch::empty_like(X);
  float* y = Y.data_ptr<float>();
  %s
  return Y;
}
"""


def blamed(tmp_path: Path, build_cache: Path, before: str, inside: str) -> bool:
    cache = BuildCache(build_cache, 2048)
    request = request_from_call(("m", FRAME % (before, inside)), {"functions": ["forward"]})
    library, log = shim_build.build(request, cache, tmp_path, 120, full=True)
    assert library is None, "this compiles"
    return plainly_the_authors(log, request, ensure_runtime(cache).parent, find_toolchain())


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("", "y[0] = 1.0f"),
        ("", "y[0] = undeclared_name;"),
        ("", "__shared__ float s[8]; s[threadIdx.x] = 0; __syncthreads();"),
        ("", "auto Y_MORE = 1; y[0] = nobody_knows_this(Y_MORE);"),
        ("", "float* p = 1.0f;"),
        ("", "y[0] = std::no_such_function(1.0f);"),
        ("#include <cmath>", "for (int i = 0; i < n; i++) y[i] = 0;"),
    ],
)
def test_plainly_the_authors(before: str, inside: str, tmp_path: Path, build_cache: Path) -> None:
    assert blamed(tmp_path, build_cache, before, inside)


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        # operators, macros and headers of torch's that the shim may lack: torch's own headers decide
        ("", "Y = at::_softmax_backward_data(X, X, 0, X.scalar_type());"),
        ("", "C10_LOG_EVERY_MS(INFO, 10);"),
        ("#include <ATen/native/cpu/utils.h>", ""),
        ("using namespace at;", "Y = _weight_norm(X, X, 0);"),
    ],
)
def test_unsure(before: str, inside: str, tmp_path: Path, build_cache: Path) -> None:
    assert not blamed(tmp_path, build_cache, before, inside)
