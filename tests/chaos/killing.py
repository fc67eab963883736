"""A trainer that kills itself with SIGKILL at a chosen point: an effect on a file, a statement, a commit.

The points of an update, in the order of their phases: what comes before (`learn`), the writing of the
checkpoint (`draft`), its rename (`rename`, just before it happens), what follows (`renamed`), the
statements of the transaction (`transaction`), its commit (`commit`, just before), and what follows (`committed`).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from kpipe.train import trainer

PHASES = ("learn", "draft", "rename", "renamed", "transaction", "commit", "committed")
_EFFECTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile")
_WRITING = os.O_WRONLY | os.O_RDWR


class Killer:
    """Dies at point number `skip` of `phase`, or at the first one after that phase."""

    def __init__(self, phase: str, skip: int) -> None:
        self.target = PHASES.index(phase)
        self.skip = skip
        self.now = 0

    def enter(self, phase: str) -> None:
        self.now = PHASES.index(phase)
        if self.target < self.now:
            self._die()
        self.point()

    def point(self) -> None:
        if self.now == self.target:
            if self.skip == 0:
                self._die()
            self.skip -= 1

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "os.rename" and ".draft-step-" in os.fspath(arguments[0]):
            self.enter("rename")
            self.now = PHASES.index("renamed")
        elif name == "os.mkdir" and ".draft-step-" in os.fspath(arguments[0]) and self.now == 0:
            self.enter("draft")
        elif name in _EFFECTS or (
            name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        ):
            self.point()

    def statement(self, _conn: Any, _cursor: Any, text: str, *_: Any) -> None:
        if self.now == PHASES.index("renamed") and text.startswith("INSERT INTO policy_version"):
            self.enter("transaction")
        else:
            self.point()

    def commit(self, _conn: Any) -> None:
        if self.now == PHASES.index("transaction"):
            self.enter("commit")
            self.now = PHASES.index("committed")
        else:
            self.point()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def doomed(url: str, run: str, phase: str, skip: int) -> None:
    """Train until that point of the first update that reaches it. For a process of its own."""
    killer = Killer(phase, skip)
    sys.addaudithook(killer.audit)
    event.listen(Engine, "before_cursor_execute", killer.statement)
    event.listen(Engine, "commit", killer.commit)
    trainer.main(url, run)
