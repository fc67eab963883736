"""Build an unmodified `load_inline` answer: through the header shim, or with the stock toolchain when that fails.

The shim stands in for torch's headers, of which a kernel uses a few dozen functions; parsing the real ones takes
nearly all of a stock build's time. What the shim does not know does not compile with it, and then the stock build
decides: no verdict differs from the stock one's.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from kpipe.errors import EvaluatorError
from kpipe.evaluate import compiler, shim_build
from kpipe.evaluate.blame import plainly_the_authors
from kpipe.evaluate.build_cache import BuildCache
from kpipe.evaluate.build_request import BuildRequest, BuildResult, Route, request_from_call
from kpipe.evaluate.build_screen import allowed_flags, refusal
from kpipe.evaluate.diagnostics import trim
from kpipe.evaluate.shim_build import ensure_runtime
from kpipe.evaluate.toolchain import Toolchain, find_toolchain

__all__ = [
    "BuildCache",
    "BuildRequest",
    "BuildResult",
    "build_module",
    "ensure_runtime",
    "load_module",
    "request_from_call",
]
_Outcome = tuple[Path | None, str, Route]


def build_module(request: BuildRequest, *, cache: BuildCache, timeout_s: float) -> BuildResult:
    """Build or find the module. Blocking; several threads and processes may build at the same time.

    A source that does not compile is a result with ok=False. Raises EvaluatorError when the machine cannot build.
    """
    started = time.monotonic()
    toolchain = find_toolchain()
    key = request.key(toolchain)

    def result(library: Path | None, log: str, route: Route) -> BuildResult:
        return BuildResult(library is not None, library, log, time.monotonic() - started, route, key)

    if reason := refusal(request, toolchain):
        return result(None, reason, "refused")
    if found := cache.get(key):
        return result(found.library, found.log, "cache")
    with cache.scratch() as folder:
        library, log, route = _build(request, toolchain, cache, folder, timeout_s)
        if library is None and time.monotonic() - started >= timeout_s:
            return result(
                None, log, route
            )  # on a quieter machine it may come out otherwise: not to be remembered
        entry = cache.put(key, library, log, route)
        return result(entry.library, entry.log, route)


def load_module(so_path: Path, name: str) -> ModuleType:
    """Import what was built, as load_inline does. The process must have imported torch."""
    spec = importlib.util.spec_from_file_location(name, so_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(
    request: BuildRequest, t: Toolchain, cache: BuildCache, folder: Path, timeout_s: float
) -> _Outcome:
    deadline = time.monotonic() + timeout_s
    if shim_build.suits(request, t):
        try:
            home = ensure_runtime(cache).parent
        except EvaluatorError:  # no runtime library for this torch: slower, not impossible
            return build_stock(request, folder, timeout_s)
        for full in (True,) if shim_build.wants_full(request) else (False, True):
            library, log = shim_build.build(request, cache, folder, deadline - time.monotonic(), full=full)
            if library or plainly_the_authors(log, request, home, t):
                return library, trim(log), "shim"
            if time.monotonic() >= deadline:
                return None, _too_long(timeout_s), "shim"
    return build_stock(request, folder, deadline - time.monotonic())


def build_stock(request: BuildRequest, folder: Path, timeout_s: float) -> _Outcome:
    """torch's own load_inline, in a process of its own that does not load what it builds."""
    out = folder / "stock"
    out.mkdir()
    cflags, cuda_flags, ldflags = allowed_flags(request)
    flags = {"extra_cflags": cflags, "extra_cuda_cflags": cuda_flags, "extra_ldflags": ldflags}
    (folder / "request.json").write_text(json.dumps(asdict(request) | flags))
    t = find_toolchain()
    extra = {"CXX": t.compiler, "PYTHONDONTWRITEBYTECODE": "1"}
    if t.cuda:
        extra |= {"CUDA_HOME": str(t.cuda.home), "TORCH_CUDA_ARCH_LIST": ";".join(t.cuda.architectures)}
    helper = Path(__file__).with_name("stock.py")
    command = [sys.executable, str(helper), str(folder / "request.json"), str(out)]
    ran = compiler.run(command, folder, timeout_s, extra=extra)
    library = out / f"{request.name}.so"
    if ran.code is None:
        return None, _too_long(timeout_s), "stock"
    return (library if ran.ok and library.exists() else None), trim(ran.output), "stock"


def _too_long(timeout_s: float) -> str:
    return f"error: the build took longer than {timeout_s:.0f} s"
