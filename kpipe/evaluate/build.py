"""Build an unmodified `load_inline` answer: through the header shim, or with the stock toolchain when that fails.

The shim (shim/include) stands in for torch's headers, of which a small answer uses a few dozen functions; parsing the
real ones takes nearly all of a stock build's time. What the shim does not know does not compile with it, and then
the stock build decides: no verdict differs from the stock one's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kpipe.errors import EvaluatorError
from kpipe.evaluate.build_cache import BuildCache, Entry
from kpipe.evaluate.diagnostics import trim
from kpipe.evaluate.flags import refused
from kpipe.evaluate.toolchain import Toolchain, find_toolchain

Route = Literal["cache", "shim", "stock", "refused"]
STANDARD = "-std=c++20"
MAX_SOURCE = 1 << 20
COMPILER_MEMORY = 4 << 30
OUTPUT_LIMIT = 1 << 20
_OUTSIDE = re.compile(
    r'^\s*#\s*(?:include|include_next|import|embed)\s*[<"](?:/|[^>"\n]*\.\.)|\.incbin|#\s*embed', re.M
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The arguments of a `load_inline` call that matter."""

    name: str
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    with_cuda: bool = False

    def key(self, toolchain: Toolchain) -> str:
        """Equal exactly when the same module would come out."""
        text = json.dumps([asdict(self), toolchain.identity], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
    names = (
        "name",
        "cpp_sources",
        "cuda_sources",
        "sycl_sources",
        "functions",
        "extra_cflags",
        "extra_cuda_cflags",
    )
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    name = given.get("name")
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"load_inline needs a name that is a Python identifier, not {str(name)[:60]!r}")
    if given.get("cpp_sources") is None:
        raise ValueError("load_inline needs cpp_sources")
    if given.get("is_python_module") is False or given.get("sycl_sources"):
        raise ValueError("load_inline with is_python_module=False or SYCL sources is not supported")
    if given.get("extra_include_paths"):
        raise ValueError("load_inline with extra_include_paths is not supported: give the sources as text")
    functions = given.get("functions")
    listed = [functions] if isinstance(functions, str) else list(functions or ())
    if not all(isinstance(f, str) and _IDENTIFIER.fullmatch(f) for f in listed):
        raise ValueError("load_inline's functions must be names of C++ functions")
    cuda = _texts(given, "cuda_sources")
    return BuildRequest(
        name=name,
        cpp_sources=_texts(given, "cpp_sources"),
        cuda_sources=cuda,
        functions=tuple(listed),
        extra_cflags=_texts(given, "extra_cflags"),
        extra_cuda_cflags=_texts(given, "extra_cuda_cflags"),
        extra_ldflags=_texts(given, "extra_ldflags"),
        with_cuda=bool(given.get("with_cuda")) or bool(cuda),
    )


def build_module(request: BuildRequest, *, cache: BuildCache, timeout_s: float) -> BuildResult:
    """Build or find the module. Blocking; several threads and processes may build at the same time.

    A source that does not compile is a result with ok=False. Raises EvaluatorError when the machine cannot build.
    """
    started = time.monotonic()
    toolchain = find_toolchain()
    key = request.key(toolchain)

    def result(entry: Entry, route: Route) -> BuildResult:
        return BuildResult(
            entry.library is not None, entry.library, entry.log, time.monotonic() - started, route, key
        )

    if reason := _refusal(request):
        return BuildResult(False, None, reason, time.monotonic() - started, "refused", key)
    if found := cache.get(key):
        return result(found, "cache")
    with cache.scratch() as folder:
        library, log = _shim_build(request, toolchain, cache, folder, timeout_s)
        if library or not _shim_to_blame(request, log, cache):
            return result(cache.put(key, library, trim(log), "shim"), "shim")
        left = timeout_s - (time.monotonic() - started)
        library, log, final = _stock_build(request, folder, max(left, 1.0))
        if not final:
            return BuildResult(False, None, trim(log), time.monotonic() - started, "stock", key)
        return result(cache.put(key, library, trim(log), "stock"), "stock")


def ensure_runtime(cache: BuildCache, say: Callable[[str], None] = lambda _: None) -> Path:
    """The shim's library, built against the real headers on first use (some 20 s). Raises EvaluatorError."""
    t = find_toolchain()
    library = cache.tools / f"libkpipe_shim-{t.identity}.so"
    if library.exists():
        return library
    with cache.lock("runtime"):
        if library.exists():
            return library
        say("building the shim's runtime library against torch's headers (once, about 20 s)")
        with cache.scratch() as folder:
            made = folder / "lib.so"
            include = [
                t.torch_dir / "include",
                t.torch_dir / "include/torch/csrc/api/include",
                t.python_include,
            ]
            command = [t.compiler, "-O1", "-fPIC", "-shared", STANDARD, "-fvisibility=hidden"]
            command += [x for path in include for x in ("-isystem", str(path))]
            libraries = t.torch_dir / "lib"
            command += [
                str(t.shim_dir / "runtime.cpp"),
                "-o",
                str(made),
                f"-L{libraries}",
                f"-Wl,-rpath,{libraries}",
            ]
            command += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
            code, log = _run(command, folder, 600.0)
            if code != 0:
                raise EvaluatorError(
                    f"The shim's library does not build against the installed torch: {trim(log, 300)}",
                    "kpipe supports torch 2.10 to 2.13; `kpipe doctor` shows what is installed.",
                )
            stub = folder / "stub.so"
            (folder / "empty.cpp").touch()
            _run(
                [t.compiler, "-shared", "empty.cpp", f"-Wl,-soname,{library}", "-o", str(stub)], folder, 60.0
            )
            stub.rename(_stub(library))
            made.rename(library)
    return library


def _stub(library: Path) -> Path:
    """What modules are linked with: an empty library that only names the real one as the dependency.

    Linking with the real one makes the linker read all of torch, a quarter of a second each time.
    """
    return library.with_suffix(".stub.so")


def _texts(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key)
    listed = [value] if isinstance(value, str) else list(value or ())
    if not all(isinstance(v, str) for v in listed):
        raise ValueError(f"load_inline's {key} must be a string or a list of strings")
    return tuple(v for v in listed if key.endswith("sources") or v.strip())


def _refusal(request: BuildRequest) -> str | None:
    """Why this is not even tried: what a compiler could be made to do with it."""
    sources = (*request.cpp_sources, *request.cuda_sources)
    if sum(map(len, sources)) > MAX_SOURCE:
        return f"error: the sources are larger than {MAX_SOURCE // 1024} KiB"
    if any("\0" in s for s in sources):
        return "error: the sources contain NUL bytes"
    joined = "\n".join(s.replace("\\\n", "") for s in sources)
    if found := _OUTSIDE.search(joined):
        return f"error: files outside the toolchain cannot be included: {found[0].strip()[:40]}"
    bad = refused(request.extra_cflags) + refused(request.extra_ldflags, linker=True)
    if bad:
        return f"error: compiler flags that are not allowed: {' '.join(bad)[:200]}"
    if request.with_cuda and shutil.which("nvcc") is None:
        return "error: CUDA sources were given, and this machine has no nvcc"
    return None


def _shim_build(
    request: BuildRequest, t: Toolchain, cache: BuildCache, folder: Path, timeout_s: float
) -> tuple[Path | None, str]:
    if not request.functions or request.with_cuda:
        return None, ""
    names = " ".join(f"KP_FUNCTION({f})" for f in request.functions)
    body = "\n".join(request.cpp_sources)
    module = f'#include <torch/extension.h>\n#include "main.cpp"\nKP_MODULE({request.name}, {names})\n'
    library = ensure_runtime(cache)  # the module names it as a dependency by its path
    (folder / "main.cpp").write_text(body + "\n", encoding="utf-8", errors="replace")
    (folder / "module.cpp").write_text(module)
    flags = ["-fPIC", STANDARD, *request.extra_cflags]
    headers = _precompiled(flags, t, cache)
    command = [t.compiler, *flags, f"-DTORCH_EXTENSION_NAME={request.name}", "-shared"]
    command += ["-isystem", str(headers)] if headers else []
    command += ["-isystem", str(t.shim_dir / "include"), "module.cpp", "-o", "module.so"]
    command += ["-Wl,--no-as-needed", str(_stub(library))]
    command += request.extra_ldflags
    code, log = _run(command, folder, timeout_s)
    return (folder / "module.so" if code == 0 else None), log


def _precompiled(flags: list[str], t: Toolchain, cache: BuildCache) -> Path | None:
    """A folder with torch/extension.h.gch for exactly these flags; the shim's text parses in a tenth of the time.

    Flags that define macros are not worth a header of their own.
    """
    if any(f.startswith(("-D", "-U")) for f in flags):
        return None
    name = hashlib.sha256(json.dumps([flags, t.identity]).encode()).hexdigest()[:16]
    home = cache.tools / f"pch-{name}"
    header = home / "torch" / "extension.h.gch"
    if header.exists():
        return home
    with cache.lock(f"pch-{name}"):
        if not header.exists():
            header.parent.mkdir(parents=True, exist_ok=True)
            (header.parent / "extension.h").write_text("#pragma once\n#include <kpipe_shim.h>\n")
            with cache.scratch() as folder:
                command = [t.compiler, *flags, "-x", "c++-header", "-isystem", str(t.shim_dir / "include")]
                command += [str(header.parent / "extension.h"), "-o", str(folder / "out.gch")]
                code, _ = _run(command, folder, 120.0)
                if code != 0:
                    return None
                (folder / "out.gch").rename(header)
    return home


_SHIM_WORDS = re.compile(
    r"torch|at::|c10|kpipe|kp_|KP_|Tensor|pybind|py::|ATen|Scalar|ArrayRef|TORCH_|AT_|no matching|no member"
    r"|ambiguous|not declared|does not name a type|has not been declared|No such file|incomplete type|undefined"
)
_UNKNOWN = re.compile(r"error: [‘'](\w+)[’'] (?:was not declared|does not name a type|has not been declared)")


def _shim_to_blame(request: BuildRequest, log: str, cache: BuildCache) -> bool:
    """Could the real headers have accepted this?

    Not when a name is unknown that torch's headers do not know either, nor when every error is about the
    language itself.
    """
    if not request.functions or request.with_cuda:
        return True
    errors = [line for line in log.splitlines() if re.search(r"\b(?:fatal )?error\b", line)]
    unknown = {m[1] for line in errors if (m := _UNKNOWN.search(line))}
    if unknown and not unknown <= _stock_names(cache):
        return False
    return not errors or any(_SHIM_WORDS.search(line) for line in errors)


def _stock_names(cache: BuildCache) -> frozenset[str]:
    """Every identifier and macro that `#include <torch/extension.h>` makes visible; found once, some 5 s."""
    t = find_toolchain()
    path = cache.tools / f"names-{t.identity}.txt"
    if not path.exists():
        with cache.lock("names"), cache.scratch() as folder:
            (folder / "all.cpp").write_text("#include <torch/extension.h>\n")
            seen: set[str] = set()
            for flags in (["-E", "-P"], ["-E", "-dM"]):
                command = [t.compiler, STANDARD, *flags, *_real_headers(t), "all.cpp", "-o", "names.txt"]
                code, log = _run(command, folder, 120.0)
                if code != 0:
                    raise EvaluatorError(f"torch's headers cannot be read: {trim(log, 300)}", "Reinstall torch.")
                seen |= set(_IDENTIFIER.findall((folder / "names.txt").read_text(errors="replace")))
            (folder / "sorted.txt").write_text("\n".join(sorted(seen)))
            (folder / "sorted.txt").rename(path)
    return frozenset(path.read_text().split("\n"))


def _real_headers(t: Toolchain) -> list[str]:
    include = [t.torch_dir / "include", t.torch_dir / "include/torch/csrc/api/include", t.python_include]
    return [x for path in include for x in ("-isystem", str(path))]


def _stock_build(request: BuildRequest, folder: Path, timeout_s: float) -> tuple[Path | None, str, bool]:
    """torch's own load_inline in a process of its own: library, log, and whether the answer is final."""
    out = folder / "stock"
    out.mkdir()
    (folder / "request.json").write_text(json.dumps(asdict(request)))
    helper = Path(__file__).with_name("stock.py")
    code, log = _run([sys.executable, str(helper), str(folder / "request.json"), str(out)], folder, timeout_s)
    if code == 0:
        return out / f"{request.name}.so", log, True
    if code == -signal.SIGKILL:
        return None, f"error: the build took longer than {timeout_s:.0f} s", True
    return None, log, True


def _run(command: list[str], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a compiler, within limits of time, memory and output; killed as a whole."""
    with (folder / "output.txt").open("wb+") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_environment(folder),
            start_new_session=True,
            preexec_fn=_limit,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return -signal.SIGKILL, f"error: the build took longer than {timeout_s:.0f} s"
        out.seek(0)
        return code, out.read(OUTPUT_LIMIT).decode("utf-8", "replace")


def _environment(folder: Path) -> dict[str, str]:
    """No secrets: what a compiler needs and nothing else."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
    }


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (COMPILER_MEMORY, COMPILER_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
