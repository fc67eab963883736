"""Find the kernel in a coder's reply, with patience for the ways in which models wrap code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^`]*)$")
_FENCE_AFTER_WORDS = re.compile(r"^([^`]+)(`{3,})(python3?|py)[ \t]*$", re.I)
_CLASS = re.compile(r"^class[ \t]+ModelNew\b", re.M)
_MODULE_START = re.compile(r"^(import|from|class|def)[ \t]+\w|^[#@]|^(\"\"\"|''')")
_PYTHON = {"", "python", "py", "python3"}
_END_OF_THOUGHT = "</think>"
_LONGEST_OVERLAP, _SURE_CHARS = 400, 20
_TRIES = 8
"""How many ways to cut one damaged reply are tried before it counts as having no code."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block: lines `start` to `end` (not included) of the reply, without the fences themselves."""

    language: str
    indent: int
    start: int
    end: int
    closed: bool


def extract_kernel(reply: str) -> str | None:
    """The last module in the reply that defines ModelNew: from a fenced block, or the bare reply itself.

    A block that is valid Python wins over a later one that is not; a closed Python block with a syntax
    error still counts, for the compiler to judge. None when there is no such code: a refusal, prose, a
    block without ModelNew, or one that breaks off before its end.
    """
    text = reply.replace("\r\n", "\n").rpartition(_END_OF_THOUGHT)[2]
    lines = text.split("\n")
    blocks = list(_blocks(lines))
    if not blocks:
        return _bare(lines)
    for block in reversed(blocks):
        if whole := _whole(lines, block):
            return whole
    for block in reversed(blocks):
        body = _body(lines, block, block.end)
        if block.closed and block.language in _PYTHON and _CLASS.search(body):
            return body
    return None


def ends_in_code(reply: str) -> bool:
    """True when the reply ends inside a fenced block, or has none: what is cut off there is no whole module."""
    blocks = list(_blocks(reply.replace("\r\n", "\n").split("\n")))
    return not blocks or not blocks[-1].closed


def join_cut(text: str, more: str) -> str:
    """A reply that was cut off, and what followed when it was asked to go on.

    A new fence around the rest is dropped, and so is what was said twice; a reply that starts all over again is
    put below, where its code is the last.
    """
    if not text or not more.strip():
        return text + more
    if list(_blocks(more.split("\n"))) and extract_kernel(more):
        return f"{text}\n{more}"
    first, _, rest = more.lstrip("\n").partition("\n")
    if ends_in_code(text) and _FENCE.match(first):
        more = rest
    return text + more[_overlap(text, more) :]


def _overlap(text: str, more: str) -> int:
    """How much of the beginning of `more` is the end of `text`: its whole last line at least."""
    last_line = len(text) - (text.rfind("\n") + 1)
    least = max(last_line, 1) if text[len(text) - last_line :].strip() else _SURE_CHARS
    for size in range(min(len(text), len(more), _LONGEST_OVERLAP), least - 1, -1):
        if text.endswith(more[:size]) and more[:size].strip():
            return size
    return 0


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """A fence that announces Python always opens a block, even where another was not closed."""
    fence, opened = "", _Block("", 0, 0, 0, closed=False)
    for i, line in enumerate(lines):
        found = _FENCE.match(line) or _FENCE_AFTER_WORDS.match(line)
        if not found:
            continue
        before, marks, info = found.groups()
        language = (info.strip("{}. \t").lower().split() or [""])[0]
        closes = fence and not info.strip() and marks.startswith(fence)
        if fence and (closes or language in _PYTHON - {""}):
            yield replace(opened, end=i, closed=bool(closes))
            fence = ""
        if not fence and not closes:
            indent = len(before) if before.isspace() else 0
            fence, opened = marks, _Block(language, indent, i + 1, i + 1, closed=False)
    if fence:
        yield replace(opened, end=len(lines))


def _body(lines: list[str], block: _Block, end: int) -> str:
    """The block's text, each line without as much indentation as its fence has."""
    taken = (line[: block.indent].lstrip(" \t") + line[block.indent :] for line in lines[block.start : end])
    return "\n".join(taken).strip("\n").rstrip() + "\n"


def _whole(lines: list[str], block: _Block) -> str | None:
    """The block, if it is valid Python that defines ModelNew.

    A Python block that is not even valid is tried up to later fences: the first may stand in a docstring.
    """
    body = _body(lines, block, block.end)
    if _defines_model(body):
        return body
    if block.language not in _PYTHON or _first_wrong_line(body) is None:
        return None
    later = (
        i for i in range(block.end + 1, len(lines)) if (f := _FENCE.match(lines[i])) and not f[3].strip()
    )
    longer = (_body(lines, block, end) for _, end in zip(range(_TRIES), later, strict=False))
    return next(filter(_defines_model, longer), None)


def _bare(lines: list[str]) -> str | None:
    """A reply without fences: the module in it, without words before and after."""
    if not _CLASS.search("\n".join(lines)):
        return None
    starts = (i for i, line in enumerate(lines) if _MODULE_START.match(line))
    for _, start in zip(range(_TRIES), starts, strict=False):
        body = "\n".join(lines[start:])
        for _ in range(_TRIES):
            wrong = _first_wrong_line(body)
            if wrong is None:
                if _defines_model(body):
                    return body.strip() + "\n"
                break
            kept = body.split("\n")
            if wrong < 2 or kept[wrong - 1][:1].isspace():
                break
            body = "\n".join(kept[: wrong - 1])
    return None


def _first_wrong_line(source: str) -> int | None:
    """Number of the line at which this stops being Python, from 1; None when it never does."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def _defines_model(source: str) -> bool:
    """True for valid Python whose top level defines ModelNew."""
    if "ModelNew" not in source:
        return False
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        (isinstance(node, ast.ClassDef) and node.name == "ModelNew")
        or (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "ModelNew" for t in node.targets)
        )
        for node in body
    )
