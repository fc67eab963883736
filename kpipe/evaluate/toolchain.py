"""What builds need from this machine, found without importing torch. Its identity is part of every cache key."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kpipe.assets import asset
from kpipe.errors import EvaluatorError

_SHIM_SOURCES = ("*.h", "*.cpp", "*.py", "*.txt")


@dataclass(frozen=True, slots=True)
class Cuda:
    """nvcc, its home, the device architectures such as 9.0, and whether the installed torch can use them."""

    nvcc: str
    home: Path
    architectures: tuple[str, ...]
    in_torch: bool


@dataclass(frozen=True, slots=True)
class Toolchain:
    """`identity` changes with the compiler, torch, Python, the processor's instructions, CUDA and the shim."""

    compiler: str
    standard: str
    torch_dir: Path
    python_include: Path
    shim_dir: Path
    cuda: Cuda | None
    prlimit: str
    identity: str

    @property
    def torch_includes(self) -> list[Path]:
        """Where load_inline looks for headers."""
        root = self.torch_dir / "include"
        return [root, root / "torch/csrc/api/include", self.python_include]


@cache
def find_toolchain() -> Toolchain:
    """Raises EvaluatorError, with the command that fixes it, when something is missing."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise EvaluatorError("There is no C++ compiler on this machine.", "Install one: apt install g++.")
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
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise EvaluatorError(
            "prlimit is missing, which bounds compilers.", "Install it: apt install util-linux."
        )
    torch_dir = Path(spec.origin).parent
    shim = asset("evaluate/shim")
    cuda = _find_cuda(torch_dir)
    standard = _standard(torch_dir)
    parts = [compiler, _first_line([compiler, "--version"]), standard, version("torch"), str(torch_dir)]
    parts += [str(sysconfig.get_config_var("SOABI")), _processor(), str(cuda)]
    parts += [_first_line([cuda.nvcc, "--version"], last=True)] if cuda else []
    parts += [f.read_text() for pattern in _SHIM_SOURCES for f in sorted(shim.rglob(pattern))]
    identity = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Toolchain(compiler, standard, torch_dir, include, shim, cuda, prlimit, identity)


def _find_cuda(torch_dir: Path) -> Cuda | None:
    """nvcc where torch looks for it: CUDA_HOME, PATH, /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = Path(home, "bin/nvcc") if home else Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    if not home and Path("/usr/local/cuda/bin/nvcc").exists():
        found = Path("/usr/local/cuda/bin/nvcc")
    if not found.exists():
        return None
    in_torch = (torch_dir / "lib/libc10_cuda.so").exists()
    return Cuda(str(found), found.resolve().parent.parent, _architectures() if in_torch else (), in_torch)


def _architectures() -> tuple[str, ...]:
    """As torch chooses them: TORCH_CUDA_ARCH_LIST, or those of the devices that are there."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return tuple(re.findall(r"\d+\.\d+a?", listed))
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return ()
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return tuple(sorted(set(re.findall(r"\d+\.\d+", done.stdout))))


def _standard(torch_dir: Path) -> str:
    """The C++ standard that this torch compiles extensions with."""
    text = (torch_dir / "utils/cpp_extension.py").read_text()
    found = re.findall(r"'(-std=c\+\+\d+)'", text)
    return max(found) if found else "-std=c++17"


def _first_line(command: list[str], *, last: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [""]
    return lines[-1 if last else 0]


def _processor() -> str:
    """-march=native means something else on another processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")
