"""How long does a build take, through the shim and through torch's own headers?

    python benchmarks/build.py --stock 2

Builds the answers of tests/assets/answers that the shim takes, in an empty cache, one after the other; the first
`--stock` of them once more with the stock load_inline.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch.utils import cpp_extension

from kpipe.evaluate import build as builds
from kpipe.evaluate.build import BuildCache, BuildRequest, ensure_runtime, request_from_call
from kpipe.evaluate.shim_build import wants_full

ANSWERS = Path(__file__).resolve().parents[1] / "tests" / "assets" / "answers"
TIMEOUT_S = 300.0


class Caught(Exception):
    """Ends an answer at its call of load_inline."""


def requests() -> Iterator[tuple[str, BuildRequest]]:
    """What each answer asks to be built."""
    for path in sorted(ANSWERS.glob("*.py")):
        with caught() as calls, suppress(Caught):
            runpy.run_path(str(path))
        yield path.stem, calls[0]


@contextmanager
def caught() -> Iterator[list[BuildRequest]]:
    calls: list[BuildRequest] = []

    def stub(*args: Any, **kwargs: Any) -> None:
        calls.append(request_from_call(args, kwargs))
        raise Caught

    original, cpp_extension.load_inline = cpp_extension.load_inline, stub
    try:
        yield calls
    finally:
        cpp_extension.load_inline = original


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stock", type=int, default=2, help="answers that are also built with torch's headers"
    )
    a = parser.parse_args()
    print(f"torch {version('torch')}")
    with tempfile.TemporaryDirectory() as scratch:
        cache = BuildCache(Path(scratch), 4096)
        started = time.monotonic()
        ensure_runtime(cache)
        print(f"the shim's library, once: {time.monotonic() - started:.1f} s")
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for number, (name, request) in enumerate(requests()):
            result = builds.build_module(request, cache=cache, timeout_s=TIMEOUT_S)
            line = f"{name:28s} {result.route:6s} {result.seconds:6.2f} s"
            if result.route == "shim" and result.ok:
                seconds[wants_full(request)].append(result.seconds)
            if number < a.stock:
                line += f", stock {stock(request, Path(scratch) / name):.1f} s"
            print(line, flush=True)
    for full, values in seconds.items():
        headers = "full" if full else "light"
        print(
            f"{headers} headers: {len(values)} answers, median {statistics.median(values):.2f} s, worst {max(values):.2f} s"
        )


def stock(request: BuildRequest, folder: Path) -> float:
    folder.mkdir()
    started = time.monotonic()
    library, log, _ = builds.build_stock(request, folder, TIMEOUT_S)
    assert library, log
    return time.monotonic() - started


if __name__ == "__main__":
    main()
