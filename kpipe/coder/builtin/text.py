"""Writing C++ line by line, indented as a person would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Code:
    """Lines of C++. ``with code.block("for (...)"):`` writes the braces and indents what is added inside."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        self._lines += ["  " * self._depth + line for line in lines if line]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")

    @contextmanager
    def loop(self, index: str, count: str, *, step: str = "", pragma: str = "") -> Iterator[None]:
        """``for index in 0 .. count``, with `pragma` above it if there is one."""
        advance = f"{index} += {step}" if step else f"{index}++"
        self.add(pragma)
        with self.block(f"for (int64_t {index} = 0; {index} < {count}; {advance})"):
            yield

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)
