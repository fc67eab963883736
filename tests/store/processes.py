"""Real processes for tests: scripts beside this file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
READY = "ready\n"


def start(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The script, told where the code under test is."""
    return subprocess.Popen(
        [sys.executable, HERE / script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))},
        **options,
    )


def wait_for(process: subprocess.Popen[str], line: str = READY) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line


def race(commands: Sequence[Sequence[str]]) -> list[str]:
    """Start all, let all go at once when all are ready; what each printed after that."""
    processes = [start(*command) for command in commands]
    for process in processes:
        wait_for(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return printed
