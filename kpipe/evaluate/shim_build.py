"""Build a kernel with the header shim in place of torch's headers.

Three things make it fast: declarations instead of torch's headers, precompiled once for each set of flags; nothing
but declarations in them, so that a kernel instantiates only its own templates; and a link that reads neither torch
nor the standard library. docs/build.md has the measurements.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from kpipe.errors import EvaluatorError
from kpipe.evaluate import compiler
from kpipe.evaluate.build_cache import BuildCache
from kpipe.evaluate.build_request import IDENTIFIER, BuildRequest
from kpipe.evaluate.build_screen import allowed_flags
from kpipe.evaluate.diagnostics import trim
from kpipe.evaluate.flags import concern_torch
from kpipe.evaluate.shim import surface
from kpipe.evaluate.toolchain import Cuda, Toolchain, find_toolchain

RUNTIME_TIMEOUT_S = 900.0
HEADER_TIMEOUT_S = 120.0
KEPT_HEADERS = 12
DEPENDENCIES = "headers.d"
"""Beside the library: every header that torch's own bring, as the compiler lists them for make."""
_FUNCTION_OF_TENSORS = re.compile(r"\b(?:Tensor|Tensor>)\s*&?\s+(\w+)\s*\(")
_WANTS_FULL = re.compile(
    r"#\s*include\s*<(?:string|string_view|sstream|iostream|iomanip|fstream|memory|map|set|unordered_map|unordered_set"
    r"|list|deque|mutex|thread|random|complex|variant|stdexcept|\w*intrin\.h)>"
    r"|\bstd::(?:string|to_string|stringstream|ostringstream|cout|cerr|endl|map|set|unordered_\w+|list|deque|mutex"
    r"|lock_guard|thread|mt19937|complex|\w+_ptr|make_\w+_?ptr|make_shared|make_unique|runtime_error|invalid_argument"
    r"|logic_error|out_of_range|domain_error|length_error|overflow_error|exception)\b"
    r"|\b_mm\d*_|\b__m\d|[Hh]alf\b|HALF|B[Ff]loat16|REDUCED_FLOATING"
)
"""What the light headers do not have. A guess is enough: what fails with them is tried with the full ones."""


def suits(request: BuildRequest, t: Toolchain) -> bool:
    """Could the shim build this, and to the same effect as torch's headers?"""
    if request.functions is None or not request.torch_errors or not request.implicit_headers:
        return False
    if not all(IDENTIFIER.fullmatch(name) for name, _ in request.functions):
        return False
    if concern_torch((*request.extra_cflags, *request.extra_cuda_cflags), t.standard):
        return False
    # An operator of torch that the shim lacks would compete with the kernel's own function of that name.
    text = "\n".join((*request.cpp_sources, *request.cuda_sources))
    competing = set(_FUNCTION_OF_TENSORS.findall(text)) & _foreign_functions(t)
    return not any(len(re.findall(rf"(?<![\w:.>]){name}\s*\(", text)) > 1 for name in competing)


def ensure_runtime(cache: BuildCache, say: Callable[[str], None] = lambda _: None) -> Path:
    """The library behind the shim's headers, built on first use against torch's (some 20 s). Raises EvaluatorError.

    Several processes may ask at once: one builds, the others wait for it. One that dies leaves nothing behind.
    """
    t = find_toolchain()
    home = cache.tools / f"shim-{t.identity}"
    library = home / _library_name(t)
    failed = home.with_suffix(".failed")
    if library.exists():
        return library
    with cache.lock("shim"):
        if not library.exists() and not failed.exists():
            say("building the shim's runtime library against torch's headers (once, about 20 s)")
            with cache.scratch() as folder:
                if log := _build_runtime(t, folder / "shim"):
                    failed.write_text(log)
                else:
                    (folder / "shim").rename(home)
    if not library.exists():
        raise EvaluatorError(
            f"The shim's library does not build against the installed torch: {failed.read_text()[:300]}",
            f"Kernels are built without it, slowly. kpipe supports torch 2.10 to 2.13; delete {failed} to try again.",
        )
    return library


def torch_headers(home: Path) -> tuple[Path, ...]:
    """The files that <torch/extension.h> brings, directly or not. `home` is the folder of the runtime library."""
    words = (home / DEPENDENCIES).read_text().replace("\\\n", " ").partition(":")[2].split()
    return tuple(path for word in words if (path := Path(word)).is_absolute())


def wants_full(request: BuildRequest) -> bool:
    """Does it look as if the light headers are not enough?"""
    return any(_WANTS_FULL.search(text) for text in (*request.cpp_sources, *request.cuda_sources))


def build(
    request: BuildRequest, cache: BuildCache, folder: Path, timeout_s: float, *, full: bool
) -> tuple[Path | None, str]:
    """The module's library, or None and what the compiler says. Raises EvaluatorError when there is no runtime.

    `full` also brings what is slow to compile: strings, streams, containers, half precision, vector intrinsics.
    """
    return _Attempt(request, cache, folder, timeout_s, ensure_runtime(cache), full).run()


class _Attempt:
    """One try, with the light or the full headers."""

    def __init__(
        self,
        request: BuildRequest,
        cache: BuildCache,
        folder: Path,
        timeout_s: float,
        library: Path,
        full: bool,
    ) -> None:
        self.request, self.cache, self.folder, self.timeout_s = request, cache, folder, timeout_s
        self.library, self.full, self.t = library, full, find_toolchain()
        self.cflags, self.cuda_flags, self.ldflags = allowed_flags(request)
        self.cuda = self.t.cuda if request.with_cuda else None

    def run(self) -> tuple[Path | None, str]:
        names = " ".join(
            f'KPIPE_SHIM_FUNCTION({name}, "{doc}")' for name, doc in self.request.functions or ()
        )
        bindings = f"KPIPE_SHIM_MODULE({self.request.name}, {names})"
        self._write("main.cpp", f"{self.request.cpp_text()}\n{bindings}\n")
        module = self.folder / "module.so"
        commands = [[*self._compile(), "main.cpp", *self._link(), "-o", module.name]]
        if self.request.cuda_sources and self.cuda:
            self._write("cuda.cu", self.request.cuda_text())
            link = [self.t.compiler, "main.o", "cuda.o", *self._link(), "-o", module.name]
            objects = [[*self._compile(), "-c", "main.cpp", "-o", "main.o"], self._nvcc(self.cuda)]
            commands = [*objects, link]
        if len(commands) > 1:
            with ThreadPoolExecutor(2) as pool:
                ran = list(pool.map(self._run, commands[:2]))
            ran += [self._run(commands[2])] if all(r.ok for r in ran) else []
        else:
            ran = [self._run(commands[0])]
        if any(r.code is None for r in ran):
            return None, f"error: the build took longer than {self.timeout_s:.0f} s"
        return (module if all(r.ok for r in ran) else None), "\n".join(r.output for r in ran)

    def _compile(self) -> list[str]:
        flags = ["-fPIC", self.t.standard, *self.cflags]
        headers = _headers(self.full, self.cuda, self.library.parent, self.t)
        prefix = _precompiled(self.full, [*flags, *headers], self.t, self.cache)
        return [self.t.compiler, *flags, *_definitions(self.request), "-include", str(prefix), *headers]

    def _link(self) -> list[str]:
        """Against an empty library of the runtime's name, and without the C++ library, which torch brings."""
        home = self.library.parent
        libraries = ["-lgomp", "-lpthread"] if "-fopenmp" in self.cflags else []
        if self.cuda:
            libraries += [f"-L{self.cuda.home}/lib64", f"-L{self.t.torch_dir}/lib", "-lcudart"]
        libraries += [*self.ldflags, "-lm", "-lgcc"]
        runtime = ["-Wl,--no-as-needed", str(home / "stub" / self.library.name), f"-Wl,-rpath,{home}"]
        return ["-shared", "-nodefaultlibs", *runtime, "-Wl,--as-needed", *libraries]

    def _nvcc(self, cuda: Cuda) -> list[str]:
        given = " ".join(self.cuda_flags)
        architectures = [] if "arch=" in given else [_gencode(a) for a in cuda.architectures]
        half = ("OPERATORS__", "CONVERSIONS__")
        defines = [f"-D__CUDA_NO_HALF_{kind}" for kind in half]
        defines += ["-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"]
        command = [cuda.nvcc, *_definitions(self.request), *defines, "--expt-relaxed-constexpr"]
        command += [*architectures, "--compiler-options", "-fPIC", *self.cuda_flags]
        command += [] if "-std=" in given else [self.t.standard]
        return [
            *command,
            *_headers(self.full, cuda, self.library.parent, self.t),
            "-c",
            "cuda.cu",
            "-o",
            "cuda.o",
        ]

    def _run(self, command: list[str]) -> compiler.Ran:
        return compiler.run(command, self.folder, self.timeout_s)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8", errors="replace")


def _definitions(request: BuildRequest) -> list[str]:
    return [f"-DTORCH_EXTENSION_NAME={request.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]


def _headers(full: bool, cuda: Cuda | None, home: Path, t: Toolchain) -> list[str]:
    flags = ["-DKPIPE_SHIM_FULL"] if full else []
    flags += ["-isystem", str(home / "include"), "-isystem", str(t.shim_dir / "include")]
    return [*flags, "-isystem", str(cuda.home / "include")] if cuda else flags


def _precompiled(full: bool, flags: list[str], t: Toolchain, cache: BuildCache) -> Path:
    """What to -include: a header precompiled for these flags. The compiler ignores one that does not fit."""
    kept = [f for f in flags if not re.match(r"-(?:D(?!KPIPE)|U|W|g\d?$)", f)]
    name = hashlib.sha256(json.dumps([kept, full, t.identity]).encode()).hexdigest()[:16]
    home = cache.tools / f"headers-{name}"
    header = home / "kpipe.h"
    if not header.exists():
        with cache.lock(home.name), cache.scratch() as folder:
            if not header.exists():
                (folder / "made").mkdir()
                (folder / "made/kpipe.h").write_text("#include <kpipe_shim.h>\n")
                command = [t.compiler, *kept, "-x", "c++-header", "made/kpipe.h", "-o", "made/kpipe.h.gch"]
                if not compiler.run(command, folder, HEADER_TIMEOUT_S).ok:
                    (folder / "made/kpipe.h.gch").unlink(missing_ok=True)
                (folder / "made").rename(home)
                cache.keep_newest("headers-", KEPT_HEADERS)
    cache.touch(home)
    return header


def _build_runtime(t: Toolchain, home: Path) -> str:
    """Headers, library and linking stub in `home`; returns what went wrong."""
    include, stub = home / "include", home / "stub"
    include.mkdir(parents=True)
    stub.mkdir()
    surface.write(t.torch_dir / "include", include)
    name = _library_name(t)
    headers = [flag for path in t.torch_includes for flag in ("-isystem", str(path))]
    headers += [flag for path in (t.shim_dir / "include", include) for flag in ("-idirafter", str(path))]
    libraries = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    if t.cuda and t.cuda.in_torch:
        headers += ["-DKPIPE_SHIM_CUDA", "-isystem", str(t.cuda.home / "include")]
        libraries += ["-lc10_cuda", f"-L{t.cuda.home}/lib64", "-lcudart"]
    torch_libraries = t.torch_dir / "lib"
    shared = [t.compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}"]
    command = [
        *shared,
        t.standard,
        "-O1",
        "-fopenmp",
        "-fno-strict-aliasing",
        "-fvisibility=hidden",
        *headers,
    ]
    command += [str(t.shim_dir / "runtime.cpp"), "-o", str(home / name)]
    command += [f"-L{torch_libraries}", f"-Wl,-rpath,{torch_libraries}", *libraries]
    ran = compiler.run(command, home, RUNTIME_TIMEOUT_S)
    if not ran.ok:
        return trim(ran.output) or "the compiler was stopped"
    (home / "torch.cpp").write_text("#include <torch/extension.h>\n")
    listing = [t.compiler, t.standard, *headers, "-M", "-MF", DEPENDENCIES, "torch.cpp"]
    ran = compiler.run(listing, home, HEADER_TIMEOUT_S)
    if not ran.ok:
        return trim(ran.output)
    (home / "empty.cpp").touch()
    ran = compiler.run([*shared, "empty.cpp", "-o", str(stub / name)], home, HEADER_TIMEOUT_S)
    return "" if ran.ok else trim(ran.output)


def _library_name(t: Toolchain) -> str:
    return f"libkpipe_shim-{t.identity}.so"


def _gencode(architecture: str) -> str:
    number = architecture.replace(".", "")
    return f"-gencode=arch=compute_{number},code=[compute_{number},sm_{number}]"


@cache
def _foreign_functions(t: Toolchain) -> frozenset[str]:
    return surface.foreign_functions(t.torch_dir / "include")
