"""The same as the `kpipe` command, from a checkout: `python cli.py collect`."""

from kpipe.cli import main

main()
