"""Logs tell about the kernel, not about the machine."""

from __future__ import annotations

from kpipe.evaluate.evidence import tidy


def test_directories_go_and_file_names_stay() -> None:
    text = 'File "/home/u/.venv/lib/python3.11/site-packages/torch/nn/module.py", line 3, in a/b'
    assert tidy(text) == 'File "module.py", line 3, in a/b'


def test_division_and_comments_stay() -> None:
    assert tidy("y = a / b; // c /2") == "y = a / b; // c /2"


def test_the_middle_of_a_long_text_is_cut() -> None:
    text = tidy("start " + "x" * 10_000 + " end", 100)
    assert len(text) <= 100
    assert text.startswith("start")
    assert text.endswith("end")


def test_control_characters_go() -> None:
    assert tidy("a\0b\x1b[31mc\nd") == "ab[31mc\nd"
