"""The `kpipe` command. Each command imports what it needs when it runs, so that --help stays quick."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors that are a person's to mend become two sentences and exit code 2."""
    from kpipe.cli.app import app
    from kpipe.errors import KpipeError

    try:
        app()
    except KpipeError as error:
        _fail(error.message, error.fix, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        where = f" {error.filename}" if error.filename else ""
        _fail(
            f"The operating system refused{where}: {error.strerror}.",
            "Check path, permissions and free space.",
            2,
        )


def _fail(message: str, fix: str, code: int) -> None:
    print(f"Error: {message}", file=sys.stderr)
    if fix:
        print(f"  {fix}", file=sys.stderr)
    sys.exit(code)
