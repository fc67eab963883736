"""What is to be built: the arguments of a `load_inline` call, and the identity of what comes out."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kpipe.evaluate.toolchain import Toolchain

Route = Literal["cache", "shim", "stock", "refused"]
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_POSITIONAL = (
    "name",
    "cpp_sources",
    "cuda_sources",
    "sycl_sources",
    "functions",
    "extra_cflags",
    "extra_cuda_cflags",
    "extra_sycl_cflags",
    "extra_ldflags",
    "extra_include_paths",
    "build_directory",
    "verbose",
    "with_cuda",
    "with_sycl",
    "is_python_module",
    "with_pytorch_error_handling",
    "keep_intermediates",
    "use_pch",
    "no_implicit_headers",
)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The arguments that matter. `functions` are (name, docstring); None when the source binds itself."""

    name: str
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] | None = None
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool = False
    torch_errors: bool = True
    implicit_headers: bool = True

    def key(self, toolchain: Toolchain) -> str:
        """sha256 in hex; equal exactly when the same module would come out."""
        text = json.dumps([asdict(self), toolchain.identity], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def cpp_text(self) -> str:
        """main.cpp as load_inline writes it, less the bindings."""
        implicit = ["#include <torch/extension.h>"] if self.implicit_headers else []
        return "\n".join([*implicit, *self.cpp_sources])

    def cuda_text(self) -> str:
        """cuda.cu as load_inline writes it."""
        headers = ("torch/types.h", "cuda.h", "cuda_runtime.h") if self.implicit_headers else ()
        return "\n".join([*(f"#include <{header}>" for header in headers), *self.cuda_sources])


@dataclass(frozen=True, slots=True)
class BuildResult:
    """`so_path` is the library of a good build; `log` what a person or a policy should read of a bad one."""

    ok: bool
    so_path: Path | None
    log: str
    seconds: float
    route: Route
    key: str


def request_from_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> BuildRequest:
    """Read a call of torch.utils.cpp_extension.load_inline. Raises ValueError that says what is wrong with it."""
    given = _bind(args, kwargs)
    name = given.get("name")
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise ValueError(f"load_inline needs a name that is a C++ identifier, not {str(name)[:60]!r}")
    if given.get("cpp_sources") is None:
        raise ValueError("load_inline needs cpp_sources")
    if given.get("is_python_module") is False:
        raise ValueError("load_inline with is_python_module=False is not supported: it returns no module")
    if given.get("sycl_sources") or given.get("with_sycl"):
        raise ValueError("load_inline with SYCL sources is not supported")
    cuda = _texts(given, "cuda_sources")
    with_cuda = given.get("with_cuda")
    return BuildRequest(
        name=name,
        cpp_sources=_texts(given, "cpp_sources"),
        cuda_sources=cuda,
        functions=_functions(given.get("functions")),
        extra_cflags=_flags(given, "extra_cflags"),
        extra_cuda_cflags=_flags(given, "extra_cuda_cflags"),
        extra_ldflags=_flags(given, "extra_ldflags"),
        extra_include_paths=_texts(given, "extra_include_paths"),
        with_cuda=bool(cuda) if with_cuda is None else bool(with_cuda),
        torch_errors=given.get("with_pytorch_error_handling", True) is not False,
        implicit_headers=not given.get("no_implicit_headers"),
    )


def _bind(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(_POSITIONAL):
        raise ValueError(f"load_inline takes {len(_POSITIONAL)} arguments, not {len(args)}")
    given = dict(zip(_POSITIONAL, args, strict=False))
    for key, value in kwargs.items():
        if key not in _POSITIONAL:
            raise ValueError(f"load_inline has no argument {str(key)[:60]!r}")
        if key in given:
            raise ValueError(f"load_inline got two values for {key!r}")
        given[key] = value
    return given


def _functions(value: Any) -> tuple[tuple[str, str], ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple, dict)):
        raise ValueError(f"load_inline's functions must be a list or a dict, not {type(value).__name__}")
    pairs = value.items() if isinstance(value, dict) else ((name, name) for name in value)
    found = tuple((name, doc) for name, doc in pairs)
    if not all(isinstance(text, str) for pair in found for text in pair):
        raise ValueError("load_inline's functions must be names, or names with docstrings")
    return found


def _texts(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key)
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple, type(None))) or not all(isinstance(v, str) for v in listed or ()):
        raise ValueError(f"load_inline's {key} must be a string or a list of strings")
    return tuple(listed or ())


def _flags(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """One by one: load_inline takes several in one string, too."""
    try:
        return tuple(flag for text in _texts(given, key) for flag in shlex.split(text))
    except ValueError as error:
        raise ValueError(f"load_inline's {key} cannot be read: {error}") from None
