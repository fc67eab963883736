"""Is this kernel new? Two sources are the same kernel when only comments, blanks or docstrings differ.

Where text alone cannot tell, they count as different: a new kernel is measured once more, one that wrongly
counts as old would lose its reward.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict

# A raw string, a comment or a line that never ends is one token to the end of the text: scanned once.
_RAW_STRING = r'(?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\((?:[\s\S]*?\)(?P=mark)"|[\s\S]*)'
_TOKEN = re.compile(
    rf"""
      (?P<comment> //[^\n]*(?=\n) | /\*[\s\S]*?\*/ )
    | (?P<newline> \n )
    | (?P<blank> [^\S\n]+ )
    | (?: //[^\n]* | /\*[\s\S]* | {_RAW_STRING} | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+'
        | \.?\d(?:[eEpP][+-]|'?\w|\.)* | \w+
        | <<=|>>=|->\*|\.\.\.|<=>|::|->|\+\+|--|<<|>>|&&|\|\||\#\#|[-+*/%&|^<>=!]= | . )
    """,
    re.X,
)
_SPLICE = re.compile(rf"({_RAW_STRING})|\\\n")
_IMPORTS = (ast.Import, ast.ImportFrom)
_CPP = re.compile(r"[;{}]|^[ \t]*#", re.M)


def fingerprint(source: str) -> str:
    """Hex digest that ignores what no compiler sees. Text that does not parse is compared as it is."""
    try:
        return _digest(ast.dump(_Normal().visit(ast.parse(source))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _digest(" ".join(source.split()))


def same_code(a: str, b: str) -> bool:
    """True when `a` and `b` compile to the same program, as far as text can tell."""
    return fingerprint(a) == fingerprint(b)


def same_as_reference(kernel: str, reference: str) -> bool:
    """True when ModelNew is the reference's Model, under whichever of the two names.

    What neither needs does not count: get_inputs, the sizes that it uses, unused imports.
    """
    try:
        return _program(kernel) == _program(reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _program(source: str) -> list[str]:
    """The top-level statements that run, or that the model needs; imports first, in one order."""
    body = [node for node in _Normal().visit(ast.parse(source)).body if not _is_main(node)]
    defined = [_defines(node) for node in body]
    where: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(defined):
        for name in names:
            where[name].append(i)
    kept = {i for i, names in enumerate(defined) if not names}
    wanted = [*kept, *where["ModelNew" if "ModelNew" in where else "Model"]]
    while wanted:
        i = wanted.pop()
        kept.add(i)
        wanted += {j for name in _uses(body[i]) for j in where.get(name, ()) if j not in kept}
    imports = sorted({ast.dump(body[i]) for i in kept if isinstance(body[i], _IMPORTS)})
    rest = [ast.dump(body[i]) for i in sorted(kept) if not isinstance(body[i], _IMPORTS)]
    return [re.sub(r"\bModelNew\b", "Model", text) for text in (*imports, *rest)]


def _defines(node: ast.stmt) -> set[str]:
    """Names that a statement defines, if that is all it does; empty for one that may have an effect."""
    if isinstance(node, _IMPORTS):
        names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        return set() if "*" in names else names
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return set() if node.decorator_list else {node.name}
    if isinstance(node, ast.Assign) and not any(isinstance(n, ast.Call) for n in ast.walk(node.value)):
        names = {t.id for t in node.targets if isinstance(t, ast.Name)}
        return names if len(names) == len(node.targets) else set()
    return set()


def _uses(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _is_main(node: ast.stmt) -> bool:
    """``if __name__ == ...:`` never runs here."""
    return isinstance(node, ast.If) and "__name__" in _uses(node.test)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class _Normal(ast.NodeTransformer):
    """Drop docstrings; drop C++ comments and blanks inside strings, where kernels live."""

    def _without_docstring(self, node: ast.AST) -> ast.AST:
        body = node.body  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        return self.generic_visit(node)

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _without_docstring

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and _CPP.search(node.value):
            return ast.Constant(_without_blanks(node.value))
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        """Its pieces are no whole C++: a comment that one opens may hold the next."""
        return node


def _without_blanks(code: str) -> str:
    """C++ as tokens, one blank between two. A directive keeps its line, and its blanks as one each.

    A comment that the end of the string cuts off stays: what follows it may be added elsewhere.
    """
    out: list[str] = []
    directive = False
    for token in _TOKEN.finditer(_SPLICE.sub(lambda m: m[1] or "", code)):
        kind, text = token.lastgroup, token[0]
        if kind == "newline":
            if directive:
                out[-1:] = ["\n"] if out[-1] == " " else [out[-1], "\n"]
            directive = False
        elif kind in ("blank", "comment"):
            if directive and out[-1] not in (" ", "#"):
                out.append(" ")
        elif directive:
            out.append(text)
        else:
            directive = text == "#"
            out += [text] if directive else [text, " "]
    return "".join(out)
