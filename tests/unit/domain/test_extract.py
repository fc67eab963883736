from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe.domain.extract import extract_kernel

MODULE = '''import torch

SOURCE = """
// adds
void add(float* x) { x[0] += 1; }
"""


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
'''
OLDER = MODULE.replace("x + 1", "x + 2")
BROKEN = MODULE.replace("def forward(self, x):", "def forward(self, x:")


def fenced(code: str, tag: str = "python", fence: str = "```") -> str:
    return f"{fence}{tag}\n{code.rstrip()}\n{fence}\n"


@pytest.mark.parametrize(
    "tag", ["", "python", "Python", "py", "python3", " python", "{python}", "python title=a.py", "{.python}"]
)
@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_one_block(tag: str, fence: str) -> None:
    assert extract_kernel(f"Here it is.\n\n{fenced(MODULE, tag, fence)}\nIt fuses the loop.") == MODULE


@pytest.mark.parametrize(
    "reply",
    [
        fenced(OLDER) + "Better:\n" + fenced(MODULE),
        fenced(MODULE) + "Use it so:\n" + fenced("model = ModelNew()\nprint(model(x))"),
        fenced("void add();", "cpp") + fenced(MODULE) + fenced("$ pip install ninja", "bash"),
        fenced(MODULE) + "What changed:\n" + fenced(BROKEN),
        fenced(MODULE, "cuda"),
        fenced("class ModelNew: ...\n", "text") + fenced(MODULE),
    ],
    ids=["last", "usage after", "other languages", "broken after", "odd tag", "text before"],
)
def test_several_blocks(reply: str) -> None:
    assert extract_kernel(reply) == MODULE


@pytest.mark.parametrize(
    "reply",
    [
        MODULE,
        f"Sure! Here is the module:\n\n{MODULE}",
        f"{MODULE}\nThis version adds one in a single pass.\nIt avoids a copy.",
        f"From here on I fuse the loops.\nfrom what I see, one pass is enough.\n{MODULE}",
    ],
    ids=["bare", "words before", "words after", "words that look like code"],
)
def test_no_fence(reply: str) -> None:
    assert extract_kernel(reply) == MODULE


def test_fence_that_is_never_closed() -> None:
    assert extract_kernel(f"```python\n{MODULE}") == MODULE
    assert extract_kernel(f"```python\n{MODULE[:-20]}(") is None


def test_fence_that_is_not_closed_before_the_next() -> None:
    assert extract_kernel(f"```python\nimport torch\n\nNow the whole:\n\n{fenced(MODULE)}") == MODULE
    assert extract_kernel(f"```markdown\n{fenced(MODULE)}```\n") == MODULE
    assert extract_kernel(f"````markdown\n{fenced(MODULE)}````\n") == MODULE


def test_fence_after_words() -> None:
    assert extract_kernel(f"The code: ```python\n{MODULE}```") == MODULE


def test_fences_in_a_docstring() -> None:
    module = f'"""How to use it:\n```\nModelNew()(x)\n```\nor else.\n"""\n{MODULE}'
    assert extract_kernel(fenced(module)) == module
    module = MODULE.replace(
        "    def forward", '    """Example:\n\n```python\nModelNew()(x)\n```\n    """\n\n    def forward'
    )
    assert extract_kernel(fenced(module)) == module


def test_block_in_a_list_loses_the_indentation_of_its_fence() -> None:
    assert (
        extract_kernel("1. Do:\n" + "".join(f"   {line}\n" for line in fenced(MODULE).splitlines())) == MODULE
    )


def test_windows_line_ends() -> None:
    assert extract_kernel(fenced(MODULE).replace("\n", "\r\n")) == MODULE


def test_drafts_in_a_chain_of_thought_are_no_answer() -> None:
    draft = f"<think>\nMaybe\n{fenced(OLDER)}no, wait\n</think>\n"
    assert extract_kernel(f"{draft}{fenced(MODULE)}") == MODULE
    assert extract_kernel(f"{draft}I cannot do that.") is None


def test_broken_code_is_left_to_the_compiler() -> None:
    assert extract_kernel(fenced(BROKEN)) == BROKEN


def test_alias_defines_the_model_as_well() -> None:
    module = "import torch\n\n\nclass Fast(torch.nn.Module):\n    pass\n\n\nModelNew = Fast\n"
    assert extract_kernel(fenced(module)) == module


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I'm sorry, but I can't help with that.",
        fenced("class Model:\n    pass\n"),
        fenced("def f():\n    class ModelNew:\n        pass\n"),
        "class ModelNew is what you asked for, but I will not write it.",
        fenced("# ModelNew goes here"),
        "```",
        "```\n```",
    ],
)
def test_no_kernel(reply: str) -> None:
    assert extract_kernel(reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        "`" * 400_000,
        "```\n" * 50_000,
        "```python\nclass ModelNew(\n" * 2_000,
        " " * 400_000 + "`",
        "``` " + " " * 400_000 + "`",
        "x" * 400_000,
        "class ModelNew\n" * 20_000,
        "```python\nclass ModelNew:\n    x = " + "(" * 100_000,
        "import a\n" * 20_000 + "class ModelNew",
    ],
    ids=["backticks", "fences", "openings", "blanks", "info", "letters", "classes", "nesting", "imports"],
)
def test_hostile_replies_end_soon(reply: str) -> None:
    """A quadratic rule would run into the limit of a test."""
    assert extract_kernel(reply) is None


@given(st.text())
def test_any_text_is_answered(reply: str) -> None:
    kernel = extract_kernel(reply)
    assert kernel is None or "ModelNew" in kernel


@given(
    before=st.text(alphabet=st.characters(exclude_characters="`~<", exclude_categories=["Cs"])),
    after=st.text(alphabet=st.characters(exclude_characters="`~<", exclude_categories=["Cs"])),
)
def test_words_around_a_block_change_nothing(before: str, after: str) -> None:
    assert extract_kernel(f"{before}\n{fenced(MODULE)}{after}") == MODULE


@given(st.lists(st.sampled_from([MODULE, OLDER, BROKEN, "print(1)\n", "words\n"]), max_size=6), st.data())
def test_what_comes_out_was_in_the_reply(pieces: list[str], data: st.DataObject) -> None:
    tags = ["", "python", "cpp", "text"]
    reply = "\n".join(fenced(piece, data.draw(st.sampled_from(tags))) for piece in pieces)
    kernel = extract_kernel(reply)
    good = [piece for piece in pieces if piece in (MODULE, OLDER)]
    if good:
        assert kernel == good[-1]
    if kernel is not None and kernel != BROKEN:
        ast.parse(kernel)
