"""The `kpipe` command. Each command imports what it needs when it runs, so that --help stays quick."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line; errors that are a person's to mend become two sentences and exit code 2."""
    from kpipe.cli.app import app
    from kpipe.errors import KpipeError

    try:
        app()
    except (Exception, KeyboardInterrupt) as error:
        if _interrupted(error):
            sys.exit(130)
        if isinstance(error, KpipeError):
            _fail(error.message, error.fix, error.exit_code)
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        if not isinstance(error, OSError) or (error.filename is None and error.strerror is None):
            raise
        where = f" {error.filename}" if error.filename else ""
        _fail(
            f"The operating system refused{where}: {error.strerror}.",
            "Check path, permissions and free space.",
            2,
        )


def _interrupted(error: BaseException | None) -> bool:
    """Ctrl-C, also where a driver's cleaning up after it failed and raised something of its own."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _fail(message: str, fix: str, code: int) -> NoReturn:
    print(f"Error: {message}", file=sys.stderr)
    if fix:
        print(f"  {fix}", file=sys.stderr)
    sys.exit(code)
