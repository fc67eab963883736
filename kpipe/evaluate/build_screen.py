"""What is refused before a compiler sees it: a compiler reads files, and some of its flags run programs.

The scan of the sources is strict about directives that name files and lines; what it cannot see (an assembler's
.incbin put together by macros) is left to the sandbox around the compiler.
"""

from __future__ import annotations

import re

from kpipe.evaluate.build_request import BuildRequest
from kpipe.evaluate.flags import compiler_flags, cuda_flags, linker_flags
from kpipe.evaluate.toolchain import Toolchain

MAX_SOURCE = 1 << 20
_SPLICE = re.compile(r"\\[ \t\v\f\r]*\n")
_DIRECTIVE = re.compile(r"^(?:.*\*/)?\s*(?:#|%:|\?\?=)((?:\s|/\*.*?\*/)*([A-Za-z_]\w*|\d+).*)$", re.M)
_NAMES_A_FILE = {"include", "include_next", "import", "embed", "line"}
_PLAIN_INCLUDE = re.compile(r"\s*include\s*(?:<([\w./+-]+)>|\"([\w./+-]+)\")\s*(?://.*|/\*.*)?")
_PLAIN_LINE = re.compile(r"\s*line\s+\d+\s*")
_FILE_PRAGMA = re.compile(r"\bGCC\s+(?:dependency|pch_preprocess)\b")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_ASSEMBLY_FILE = re.compile(r"\.\s*(?:incbin|include)\b|\\(?:x|u|U|[0-7])", re.I)
_ADJACENT_STRINGS = re.compile(r'"\s*"')


def refusal(request: BuildRequest, toolchain: Toolchain) -> str | None:
    """Why this is not even tried, as a compiler would say it; None when it may be tried."""
    sources = (*request.cpp_sources, *request.cuda_sources)
    names = [text for pair in request.functions or () for text in pair]
    if sum(map(len, (*sources, *names))) > MAX_SOURCE:
        return f"error: the sources are larger than {MAX_SOURCE // 1024} KiB"
    if any("\0" in text for text in (*sources, *names)):
        return "error: the sources contain NUL bytes"
    for text in sources:
        if found := forbidden_directive(text):
            return f"error: this directive is not allowed in a kernel: {found}"
    if request.extra_include_paths:
        return "error: extra_include_paths are not allowed: give everything as text"
    bad = [flag for flags in _flags(request) for flag in flags[1]]
    if bad:
        return f"error: compiler flags that are not allowed: {' '.join(bad)[:200]}"
    if request.with_cuda and (toolchain.cuda is None or not toolchain.cuda.in_torch):
        missing = "no nvcc" if toolchain.cuda is None else "a torch without CUDA"
        return f"error: CUDA sources were given, and this machine has {missing}"
    return None


def forbidden_directive(source: str) -> str | None:
    """The first directive that could show a file that is no header, shortened; computed includes count."""
    text = _SPLICE.sub("", source)
    for found in _DIRECTIVE.finditer(text):
        whole, name = found[1], found[2]
        if (name in _NAMES_A_FILE or name.isdigit()) and not _harmless(whole):
            return f"#{whole.strip()[:60]}"
        if name == "pragma" and _FILE_PRAGMA.search(whole):
            return f"#{whole.strip()[:60]}"
    if _ASSEMBLY.search(text):
        for line in _ADJACENT_STRINGS.sub("", text).splitlines():
            if hidden := _ASSEMBLY_FILE.search(line):
                return f"asm with {hidden[0]}"
    return None


def allowed_flags(request: BuildRequest) -> tuple[list[str], list[str], list[str]]:
    """Compiler's, nvcc's and linker's flags, without those that are left out."""
    cflags, cuda, ldflags = (good for good, _ in _flags(request))
    return cflags, cuda, ldflags


def _flags(request: BuildRequest) -> tuple[tuple[list[str], list[str]], ...]:
    return (
        compiler_flags(request.extra_cflags),
        cuda_flags(request.extra_cuda_cflags),
        linker_flags(request.extra_ldflags),
    )


def _harmless(directive: str) -> bool:
    if found := _PLAIN_INCLUDE.fullmatch(directive):
        path = found[1] or found[2]
        return not path.startswith("/") and ".." not in path.split("/")
    return bool(_PLAIN_LINE.fullmatch(directive))
