from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe.assets import asset
from kpipe.domain.identity import fingerprint, same_as_reference, same_code

KERNEL = r'''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#define TWICE(x) ((x) + (x))
// doubles
torch::Tensor run(torch::Tensor x) {
    const char* url = "http://example.org/*no comment*/";  /* a comment */
    char quote = '"';
    float million = 1'000'000.5e-3f;
    auto y = torch::empty_like(x);
    for (int i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = TWICE(x.data_ptr<float>()[i]);
    return y;
}
"""

module = load_inline(name="twice", cpp_sources=SOURCE, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.run(x)
'''

REFERENCE = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """Doubles."""
    def __init__(self, scale):
        super(Model, self).__init__()
        self.scale = scale

    def forward(self, x):
        return x * 2 * self.scale

batch_size = 16

def get_inputs():
    return [torch.randn(batch_size, 8)]

def get_init_inputs():
    return [1.0]
'''


def problems() -> list[Path]:
    return sorted(asset("problems/builtin").rglob("*.py"))


def cpp(code: str) -> str:
    """A module that holds this C++."""
    return f"SOURCE = {code!r}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// doubles", "// twice as much, don't ask"),
        ("// doubles\n", ""),
        ("/* a comment */", "/* two\nlines */"),
        ("    auto y", "\tauto   y"),
        ("{\n    const", "{ const"),
        ("++i) y", "++i)\n        y"),
        ("i < x", "i<x"),
        ("import torch\n", "import torch  # the library\n\n"),
        ("    def forward", '    """Doubles."""\n\n    def forward'),
        ("return module.run(x)", "return module.run(\n            x,\n        )"),
        ("#define TWICE(x) ((x) + (x))", "#  define TWICE(x)   ((x) + (x))  // twice"),
        ("((x) + (x))", "((x) + \\\n(x))"),
        ("torch::empty_like", "torch:\\\n:empty_like"),
    ],
)
def test_what_no_compiler_sees(old: str, new: str) -> None:
    assert old in KERNEL
    changed = KERNEL.replace(old, new.replace("\\\n", "\\\\\n"), 1)
    assert same_code(KERNEL, changed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("http://example.org", "http://example.com"),
        ("/*no comment*/", "/*other*/"),
        ("'\"'", "'`'"),
        ("1'000'000", "1'000'001"),
        ("5e-3f", "5e+3f"),
        ("++i", "i++"),
        ("int i", "inti"),
        ("TWICE(x)", "TWICE (x)"),
        ("// doubles\n", "// doubles\\\\\n"),
        ("// doubles", "#pragma omp parallel for"),
        ("i < x", "i <= x"),
        ("return y;", "return x;"),
        ("    return y;", "    // return y;"),
        ("module.run(x)", "module.run(x) + 0"),
        ('functions=["run"]', 'functions=["run "]'),
        ("x.numel(); ++", "x.numel() - -1; ++"),
    ],
)
def test_what_a_compiler_sees(old: str, new: str) -> None:
    assert old in KERNEL
    assert not same_code(KERNEL, KERNEL.replace(old, new, 1))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('s = R"(a  b)";', 's = R"(a b)";'),
        ('s = R"(// a)";\n', 's = R"(// b)";\n'),
        ('s = R"x()" a)x";', 's = R"x()" b)x";'),
        ('s = R"(a\\\nb)";', 's = R"(ab)";'),
        ('#define A R"(x \n)"\n', '#define A R"(x\n)"\n'),
        ('s = L"a";', 's = L "a";'),
        ("#define A \\\n x\nint y;", "#define A \\\n x int y;"),
        ("x = a / *b; // c\n", "x = a /*b; // c\n"),
        ("int a; // b", "int a; // c"),
        ("int a; /* b", "int a; /* c"),
        ("a - -b;", "a--b;"),
        ("x > > y;", "x >> y;"),
    ],
)
def test_cpp_that_differs(a: str, b: str) -> None:
    assert not same_code(cpp(a), cpp(b))


def test_strings_that_are_no_cpp_are_compared_as_they_are() -> None:
    assert not same_code("x = 'a//b'", "x = 'a//c'")
    assert not same_code("x = 'a  b'", "x = 'a b'")
    assert not same_code("x = f'a; // {y}\\n z;'", "x = f'a; {y}\\n z;'")
    assert not same_code("x = f'a; int{y}'", "x = f'a; int {y}'")
    assert not same_code("x = 1", "x = True")


def test_code_that_does_not_parse_is_compared_as_text() -> None:
    assert same_code("def f(:\n  x", "def f(:\n    x")
    assert not same_code("def f(:\n  x", "def f(:\n  y")


TOKENS = [
    "int",
    "x",
    "=",
    "1'0",
    "2.5e-3f",
    '"a // b"',
    "'\"'",
    "+",
    "+=",
    "++",
    "->",
    "::",
    "<",
    "(",
    ")",
    "{",
    "}",
    ";",
    'R"q( " /* )q"',
    "<<",
    "/",
    "*",
    "&&",
]
BLANKS = [" ", "\n", "\t ", " /* c; */ ", " // c '\"\n", "\\\n ", "\n\n"]


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_blanks_and_comments_never_count(tokens: list[str], rng: random.Random) -> None:
    tokens.append(";")
    plain = " ".join(tokens)
    decorated = "".join(token + rng.choice(BLANKS) for token in tokens)
    assert same_code(cpp(plain), cpp(decorated + "\n"))


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_a_changed_token_always_counts(tokens: list[str], rng: random.Random) -> None:
    tokens.append(";")
    i = rng.randrange(len(tokens))
    changed = [*tokens[:i], rng.choice([t for t in TOKENS if t != tokens[i]]), *tokens[i + 1 :]]
    assert not same_code(cpp(" ".join(tokens)), cpp(" ".join(changed)))
    assert not same_code(cpp(" ".join(tokens)), cpp(" ".join(tokens[:i] + tokens[i + 1 :])))


@given(st.text(), st.text())
def test_any_two_texts_can_be_compared(a: str, b: str) -> None:
    assert same_code(a, a)
    assert same_code(a, b) == same_code(b, a)
    assert isinstance(same_as_reference(a, b), bool)


@pytest.mark.parametrize("path", problems(), ids=lambda p: p.stem)
def test_a_problem_is_its_own_reference_until_a_number_changes(path: Path) -> None:
    source = path.read_text()
    assert same_as_reference(source, source)
    assert same_as_reference(re.sub(r"\bModel\b", "ModelNew", source), source)
    body = source.index("def forward")
    changed = source[:body] + source[body:].replace("return ", "return 1.0 * ", 1)
    assert not same_as_reference(re.sub(r"\bModel\b", "ModelNew", changed), source)


def test_only_what_the_model_needs_counts_against_the_reference() -> None:
    renamed = REFERENCE.replace("Model", "ModelNew")
    bare = renamed[: renamed.index("batch_size")]
    for same in (
        bare,
        bare.replace("import torch\n", ""),
        bare.replace("import torch\n", "import math\nimport torch\n"),
        bare.replace("import torch\nimport torch.nn as nn\n", "import torch.nn as nn\nimport torch\n"),
        renamed.replace("batch_size = 16", "batch_size = 1"),
        f"{bare}\nif __name__ == '__main__':\n    print(ModelNew(1.0))\n",
        f"{bare}\nUNUSED = 3\n\ndef unused():\n    pass\n",
        REFERENCE + bare,
    ):
        assert same_as_reference(same, REFERENCE), same


def test_what_has_an_effect_counts_against_the_reference() -> None:
    renamed = REFERENCE.replace("Model", "ModelNew")
    for different in (
        f"{renamed}\ntorch.backends.mkldnn.enabled = False\n",
        f"{renamed}\n_ = torch.set_num_threads(1)\n",
        f"{renamed}\nModelNew = torch.compile(ModelNew)\n",
        renamed.replace("x * 2 * self.scale", "2 * x * self.scale"),
        renamed.replace("(nn.Module)", "(Model)") + REFERENCE,
        "def f(:",
        "",
    ):
        assert not same_as_reference(different, REFERENCE), different


@pytest.mark.parametrize(
    "code",
    [
        "/" * 300_000,
        "/* " * 100_000,
        'R"(' * 100_000,
        '"' * 300_000,
        "'" * 300_000,
        " " * 300_000,
        "\\\n" * 150_000,
    ],
    ids=["slashes", "comments", "raw strings", "quotes", "apostrophes", "blanks", "splices"],
)
def test_hostile_kernels_end_soon(code: str) -> None:
    """A quadratic rule would run into the limit of a test."""
    assert fingerprint(cpp("{" + code)) != fingerprint(cpp("{;"))


def test_deep_nesting_is_no_crash() -> None:
    deep = f"x = {'+'.join('1' * 5000)}\n{'(' * 5000}"
    assert same_code(deep, deep)
    assert not same_code(f"x = {'-' * 90}1" + "+1" * 2000, "x = 1")
