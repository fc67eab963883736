"""Is this kernel new? Two sources are the same kernel when only comments, blanks or docstrings differ."""

from __future__ import annotations

import ast
import hashlib
import re

_C_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.S)


def fingerprint(source: str) -> str:
    """Hex digest that ignores what no compiler sees. Text that does not parse is compared as it is."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _digest(" ".join(source.split()))
    return _digest(ast.dump(_Normal().visit(tree)))


def same_code(a: str, b: str) -> bool:
    """True when `a` and `b` compile to the same program, as far as text can tell."""
    return fingerprint(a) == fingerprint(b)


def same_as_reference(kernel: str, reference: str) -> bool:
    """True when the kernel is the reference, with Model at most renamed to ModelNew."""
    return fingerprint(re.sub(r"\bModelNew\b", "Model", kernel)) == fingerprint(
        re.sub(r"\bModelNew\b", "Model", reference)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class _Normal(ast.NodeTransformer):
    """Drop docstrings; drop C comments and fold white space inside strings, where C++ sources live."""

    def _without_docstring(self, node: ast.AST) -> ast.AST:
        body = node.body  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        return self.generic_visit(node)

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _without_docstring

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, str):
            return node
        bare = _C_COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else " ", node.value)
        return ast.Constant(_fold(bare))


def _fold(code: str) -> str:
    """White space means nothing in C++ except at the ends of preprocessor lines."""
    out: list[str] = []
    for line in code.splitlines():
        words = " ".join(line.split())
        if not words:
            continue
        glue = "\n" if words.startswith("#") or (out and out[-1].startswith("#")) else " "
        out.append(words) if not out or glue == "\n" else out.__setitem__(-1, f"{out[-1]} {words}")
    return "\n".join(out)
