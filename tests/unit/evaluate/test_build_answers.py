"""Unmodified answers, built by the route that each claims: same results and same errors as PyTorch's own."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from kpipe.evaluate.build import BuildCache, build_module, load_module, request_from_call

ANSWERS = sorted((Path(__file__).parents[2] / "assets" / "answers").glob("*.py"))


@pytest.fixture
def cache(build_cache: Path) -> BuildCache:
    return BuildCache(build_cache, 2048)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answer(path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = []

    def load_inline(*args: Any, **kwargs: Any) -> Any:
        result = build_module(request_from_call(args, kwargs), cache=cache, timeout_s=250)
        assert result.ok, result.log
        assert result.so_path is not None
        routes.append(result.route)
        return load_module(result.so_path, kwargs["name"])

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    answer = runpy.run_path(str(path))
    assert set(routes) <= {answer["ROUTE"], "cache"}
    module = answer["module"]
    for name, arguments, expected in answer["CALLS"]:
        torch.manual_seed(0)
        given = arguments()
        assert_same(getattr(module, name)(*given), expected(*given), f"{name} of {path.stem}")
    for name, arguments, kind, text in answer["ERRORS"]:
        with pytest.raises(kind) as raised:
            getattr(module, name)(*arguments())
        assert raised.type is kind
        assert text in str(raised.value)


def assert_same(got: Any, want: Any, what: str) -> None:
    """Equal in type, dtype and shape, and near in value."""
    assert type(got) is type(want), what
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), what
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text: f"{what}: {text}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), what
        for one, other in zip(got, want, strict=True):
            assert_same(one, other, what)
    else:
        assert got == want, what


def test_docstrings_and_keywords(cache: BuildCache) -> None:
    request = request_from_call(
        ("documented", "int64_t twice(int64_t v) { return 2 * v; }"), {"functions": {"twice": "Two times v."}}
    )
    result = build_module(request, cache=cache, timeout_s=250)
    assert result.so_path is not None, result.log
    module = load_module(result.so_path, "documented")
    assert module.twice.__name__ == "twice"
    assert "Two times v." in module.twice.__doc__
    with pytest.raises(TypeError, match="keyword"):
        module.twice(arg0=3)
