"""Build the wheel, install it into an empty environment without the checkout, and use it from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        dist, env, home = (Path(scratch) / name for name in ("dist", "env", "home"))
        home.mkdir()
        call([sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), "."])
        (wheel,) = dist.glob("*.whl")
        # The dependencies are the ones that the tests ran with: only kpipe itself is installed anew.
        venv.create(env, with_pip=True)
        python = str(env / "bin" / "python")
        call([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)])
        share_dependencies(env)
        kpipe = str(env / "bin" / "kpipe")
        for arguments in (
            ["--version"],
            ["config", "show"],
            ["problems", "list"],
            ["db", "upgrade"],
            ["db", "check"],
            ["run", "--set", "train.max_steps=1", "--set", "policy.warmstart_steps=5"],
            ["db", "verify"],
        ):
            call([kpipe, *arguments], cwd=home)
    print("the wheel works")


def share_dependencies(env: Path) -> None:
    """Put the test environment's packages on the path, less the editable kpipe."""
    (target,) = (env / "lib").glob("python*/site-packages")
    (here,) = {p for p in sys.path if p.endswith("site-packages")}
    for package in Path(here).iterdir():
        if "kpipe" not in package.name and not (target / package.name).exists():
            (target / package.name).symlink_to(package)


def call(command: list[str], cwd: Path | None = None) -> None:
    print("$", " ".join(Path(c).name if c == command[0] else c for c in command), flush=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "KPIPE_"))}
    subprocess.run(command, cwd=cwd, check=True, env=clean)


if __name__ == "__main__":
    main()
