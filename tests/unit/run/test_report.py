"""What a person is told to type next."""

from __future__ import annotations

import pytest

from kpipe.run.report import options


@pytest.mark.parametrize(
    ("run", "db", "words"),
    [
        ("default", "sqlite:///kpipe.db", ""),
        ("", "sqlite:///kpipe.db", ""),
        ("first", "sqlite:///kpipe.db", " --run first"),
        ("first", "sqlite:///my runs.db", " --run first --db 'sqlite:///my runs.db'"),
        ("default", "postgresql://me@/k?host=/tmp", " --db 'postgresql://me@/k?host=/tmp'"),
    ],
)
def test_options_can_be_pasted_into_a_shell(run: str, db: str, words: str) -> None:
    assert options(run, db) == words
