"""Whose mistake is it when a kernel does not compile with the shim's headers? If in doubt, torch's headers decide.

Plainly the author's are: broken syntax, names that no header can have declared there, and fundamental types that
do not fit. Nothing counts as plain in a source that uses a macro of torch's which the shim does not know.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from kpipe.evaluate.build_request import BuildRequest
from kpipe.evaluate.shim_build import torch_headers
from kpipe.evaluate.toolchain import Toolchain

_GCC = re.compile(r"(?P<file>[^:\s]*):\d+:\d+: (?:fatal )?error: (?P<message>.*)")
_EDG = re.compile(r"(?P<file>[^\s(]*)\(\d+\): (?:catastrophic )?error: (?P<message>.*)")
_ANY = re.compile(r"\b(?:fatal )?error\b", re.I)
_COUNT = re.compile(r"\d+ errors? detected in ")
_SYNTAX = re.compile(
    r"expected .*|stray .* in program|missing terminating .*|unterminated .*|missing closing quote"
    r"|unable to find numeric literal operator.*|invalid suffix .*|invalid digit .* constant|lvalue required .*"
    r"|(?:assignment|increment|decrement) of read-only .*|(?:break|continue) statement not within .*"
    r"|case label .* not within .*|duplicate case value|return-statement with .*"
)
_UNKNOWN = re.compile(
    r"'(?P<name>\w+)' (?:was not declared in this scope|does not name a type|has not been declared).*"
    r"|identifier \"(?P<edg>\w+)\" is undefined"
)
_NOT_IN_STD = re.compile(r"'(?P<name>\w+)' is not a member of 'std'.*")
_TYPES = re.compile(
    r"cannot convert .*|invalid conversion from .*|invalid operands of types .*|void value not ignored .*"
    r"|request for member .* non-class type .*|(?:redeclaration|redefinition) of .*|conflicting declaration .*"
    r"|invalid type argument .*|invalid types .* for array subscript|too (?:few|many) arguments to function .*"
)
_QUOTED = re.compile(r"'([^']*)'")
_NAME = re.compile(r"[A-Za-z_]\w*(?:::\w+)*")
_FUNDAMENTAL = re.compile(
    r"const|volatile|unsigned|signed|char|short|int|long|float|double|bool|void|u?int\d+_t|size_t|aka|static|true|false"
)
_MACRO = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*\b")
_DEFINED = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
_INCLUDED = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)", re.M)
_USING = re.compile(r"\busing\s+namespace\b")
_GLOBAL = (
    r"^\s*#\s*define\s+{name}\b|^\}}\s*{name}\b"
    r"|^(?:extern|static|inline|constexpr|const|using|typedef|struct|class|enum|namespace)\b[^(]*\b{name}\b"
)
"""How a header can make a variable or a type visible without a namespace."""


def plainly_the_authors(log: str, request: BuildRequest, home: Path, t: Toolchain) -> bool:
    """Would torch's headers reject this, too? `home` is the shim's folder. False when unsure."""
    source = "\n".join((*request.cpp_sources, *request.cuda_sources))
    log = log.replace("‘", "'").replace("’", "'")
    lines = [line for line in log.splitlines() if _ANY.search(line) and not _COUNT.match(line)]
    found = [_GCC.fullmatch(line) or _EDG.fullmatch(line) for line in lines]
    if not found or not all(m and m["file"] in ("main.cpp", "cuda.cu") for m in found):
        return False
    headers = _everything(t) if request.cuda_sources else _reachable(source, home, t)
    macros = set(_MACRO.findall(source)) - set(_DEFINED.findall(source))
    unknown = macros - _words_in((home / "include", t.shim_dir / "include"), macros)
    if _words_in(headers, unknown):
        return False
    first = found[0]  # what follows may be its consequence: a name is unknown because its declaration failed
    return first is not None and _plain(first["message"], source, headers)


def _plain(message: str, source: str, headers: tuple[Path, ...]) -> bool:
    if _SYNTAX.fullmatch(message):
        return True
    if found := _UNKNOWN.fullmatch(message):
        return not _can_be_declared(found["name"] or found["edg"], source, headers)
    if found := _NOT_IN_STD.fullmatch(message):
        return not _words_in(headers, {found["name"]})
    if _TYPES.fullmatch(message):
        names = {name for quoted in _QUOTED.findall(message) for name in _NAME.findall(quoted)}
        own = {name for name in names if not _FUNDAMENTAL.fullmatch(name)}
        if all("::" not in name and re.search(rf"\b{name}\b", source) for name in own):
            return not any(_can_be_declared(name, source, headers) for name in own)
    return False


def _can_be_declared(name: str, source: str, headers: tuple[Path, ...]) -> bool:
    """Could any of these headers give this unqualified name a meaning?"""
    if _USING.search(source) or re.search(rf"\b{name}\s*[(<]", source):  # also by its arguments' namespaces
        return bool(_words_in(headers, {name}))
    return bool(_grep(["-rhPom1", _GLOBAL.format(name=name)], headers))


def _reachable(source: str, home: Path, t: Toolchain) -> tuple[Path, ...]:
    """The headers that this source sees: torch's, and all there are when it includes others."""
    brought = torch_headers(home)
    known = tuple(str(path) for path in brought)
    if all(any(path.endswith(f"/{name}") for path in known) for name in _INCLUDED.findall(source)):
        return brought
    return _everything(t)


def _everything(t: Toolchain) -> tuple[Path, ...]:
    headers = (t.torch_dir / "include", t.python_include, *_system_headers(t))
    return (*headers, t.cuda.home / "include") if t.cuda else headers


def _words_in(folders: tuple[Path, ...], words: set[str]) -> set[str]:
    """Which of these words occur in any file there."""
    if not words:
        return set()
    patterns = [part for word in sorted(words) for part in ("-e", word)]
    return set(_grep(["-rhowF", *patterns], folders).split())


def _grep(arguments: list[str], folders: tuple[Path, ...]) -> str:
    command = ["grep", "-s", *arguments, "--", *map(str, folders)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout


@cache
def _system_headers(t: Toolchain) -> tuple[Path, ...]:
    """Headers of the C++ library and of the system, as the compiler finds them."""
    command = [t.compiler, "-E", "-v", "-x", "c++", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"search starts here:\n(.*?)End of search list", done.stderr, re.S)
    found = [Path(line.strip()) for line in listed[1].splitlines()] if listed else []
    return tuple(path.resolve() for path in found if path.is_dir()) or (Path("/usr/include"),)
