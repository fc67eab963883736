"""What builds need from this machine, found without importing torch. Its identity is part of every cache key."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kpipe.assets import asset
from kpipe.errors import EvaluatorError


@dataclass(frozen=True, slots=True)
class Toolchain:
    """`identity` changes with the compiler, torch, Python, the processor's instructions and the shim."""

    compiler: str
    torch_dir: Path
    python_include: Path
    shim_dir: Path
    identity: str


@cache
def find_toolchain() -> Toolchain:
    """Raises EvaluatorError, with the command that fixes it, when something is missing."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise EvaluatorError(
            "There is no C++ compiler (g++) on this machine.", "Install one: apt install g++."
        )
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise EvaluatorError(
            f"Python's headers are missing ({include}/Python.h).", "Install them: apt install python3-dev."
        )
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise EvaluatorError(
            "torch is not installed.", "Install kpipe with its dependencies: pip install kpipe."
        )
    shim = asset("evaluate/shim")
    parts = [
        _first_line([compiler, "--version"]),
        version("torch"),
        sysconfig.get_config_var("SOABI"),
        _processor(),
    ]
    parts += [f.read_text() for f in sorted(shim.rglob("*")) if f.suffix in (".h", ".cpp")]
    identity = hashlib.sha256("\0".join(str(p) for p in parts).encode()).hexdigest()[:16]
    return Toolchain(compiler, Path(spec.origin).parent, include, shim, identity)


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def _processor() -> str:
    """-march=native means something else on another processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")
