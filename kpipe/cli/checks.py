"""What `kpipe doctor` looks at: each check tries the thing itself, and none imports torch."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from kpipe.errors import KpipeError

State = Literal["ok", "missing", "optional"]

GIB = 2**30
NEEDED_MEMORY_GIB = 3
NEEDED_DISK_GIB = 2
PATIENCE_S = 30
"""A tool that takes longer to answer counts as broken."""

_HELLO = """
#include <cstdio>
#include <vector>
int main() { std::vector<int> v(3); std::printf("%zu", v.size()); }
"""
_HEADERS = f"#include <Python.h>\n{_HELLO}"
_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION = 444, 1


@dataclass(frozen=True, slots=True)
class Finding:
    """`missing` keeps `kpipe run` from working; `optional` is not there and not needed for it."""

    name: str
    state: State
    detail: str
    fix: str = ""


def examine(db: str, *, gpu: bool = False) -> list[Finding]:
    """All findings, in the order to read them. `gpu` loads torch and uses the device."""
    checks: list[Callable[[], Finding]] = [
        python,
        lambda: torch(load=gpu),
        compiler,
        ninja,
        nvcc,
        graphics,
        lambda: database(db),
        lambda: postgres(db),
        api_key,
        sandbox,
        disk,
        memory,
        cores,
    ]
    with ThreadPoolExecutor(len(checks)) as threads:
        return [pending.result() for pending in [threads.submit(check) for check in checks]]


def ready(findings: list[Finding]) -> bool:
    """True when `kpipe run` can work here."""
    return all(f.state != "missing" for f in findings)


def python() -> Finding:
    """This interpreter; pip refuses to install kpipe under one that is too old."""
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def torch(*, load: bool = False) -> Finding:
    """Version and kind of build by the installed files alone, unless `load`."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Finding("torch", "missing", "not installed", "pip install 'torch>=2.10,<2.14'")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", text, re.M)
    detail = f"{version('torch')}, {f'CUDA {cuda[1]} build' if cuda else 'CPU build'}"
    return _loaded_torch(detail) if load else Finding("torch", "ok", detail)


def _loaded_torch(detail: str) -> Finding:
    program = (
        "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() and"
        " torch.ones(2, device='cuda').sum().item() == 2 else 'no usable GPU')"
    )
    done = _run([sys.executable, "-c", program])
    if done is None or done.returncode != 0:
        reason = _last_line(done.stderr) if done else "no answer"
        return Finding(
            "torch", "missing", f"{detail}, does not work: {reason}", "pip install --force-reinstall torch"
        )
    return Finding("torch", "ok", f"{detail}, {done.stdout.strip()}")


def compiler() -> Finding:
    """Builds and runs a program, and one that includes Python's headers."""
    name = shutil.which("g++") or shutil.which("c++")
    if name is None:
        return Finding("compiler", "missing", "no g++ on PATH", "apt install g++")
    about = _run([name, "--version"])
    detail = f"{name}, {about.stdout.partition(chr(10))[0]}" if about else name
    with tempfile.TemporaryDirectory(prefix="kpipe-doctor-") as folder:
        if reason := _does_not_build(name, _HELLO, Path(folder)):
            return Finding(
                "compiler",
                "missing",
                f"{detail}; cannot build a program: {reason}",
                "apt install g++ libc6-dev",
            )
        if reason := _does_not_build(name, _HEADERS, Path(folder)):
            return Finding(
                "compiler", "missing", f"{detail}; no Python headers: {reason}", "apt install python3-dev"
            )
    return Finding("compiler", "ok", detail)


def _does_not_build(name: str, source: str, folder: Path) -> str:
    """What the compiler complains about; '' when the program was built and ran."""
    (folder / "hello.cpp").write_text(source)
    binary = str(folder / "hello")
    include = sysconfig.get_paths()["include"]
    built = _run([name, "-std=c++17", "-fPIC", f"-I{include}", str(folder / "hello.cpp"), "-o", binary])
    if built is None:
        return "no answer"
    if built.returncode != 0:
        complaint = re.search(r"error: (.*)", built.stderr)
        return complaint[1] if complaint else _last_line(built.stderr)
    ran = _run([binary])
    return "" if ran and ran.stdout == "3" else f"what it built in {tempfile.gettempdir()} does not run"


def ninja() -> Finding:
    """torch's own build route needs it; the environment's copy counts although its bin may not be on PATH."""
    beside = str(Path(sys.executable).parent)
    name = shutil.which("ninja") or shutil.which("ninja", path=beside)
    about = _run([name, "--version"]) if name else None
    if about is None or about.returncode != 0:
        return Finding("ninja", "missing", "not found", "pip install ninja")
    return Finding("ninja", "ok", f"{about.stdout.strip()} ({name})")


def nvcc() -> Finding:
    name = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    about = _run([name, "--version"]) if name else None
    release = re.search(r"release ([\d.]+)", about.stdout) if about else None
    if release is None:
        return Finding(
            "nvcc", "optional", "not found; CUDA kernels cannot be built", "apt install nvidia-cuda-toolkit"
        )
    return Finding("nvcc", "ok", f"CUDA {release[1]} ({name})")


def graphics() -> Finding:
    """Which GPUs the driver shows."""
    query = "--query-gpu=name,memory.total,driver_version"
    about = _run(["nvidia-smi", query, "--format=csv,noheader"])
    if about is None or about.returncode != 0 or not about.stdout.strip():
        fix = "" if about is None else "nvidia-smi"
        return Finding("gpu", "optional", "none; everything runs on the CPU", fix)
    return Finding("gpu", "ok", "; ".join(about.stdout.strip().splitlines()))


def database(url: str) -> Finding:
    """State of the schema behind `url`, or of the place where the file would be made. Creates nothing."""
    from kpipe.store import sqlite
    from kpipe.store.database import parse_url

    try:
        parsed = parse_url(url)
        if parsed.get_backend_name() == "postgresql":
            return Finding("database", "ok", "Postgres: see its line below")
        path = Path(parsed.database or "")
        sqlite.inspect_file(path, create=True)
        where = f"{path} on {sqlite.file_system(path) or 'an unknown file system'}"
        if not path.exists():
            return Finding("database", "ok", f"{where}: not there yet, `kpipe run` creates it")
        return Finding("database", "ok", f"{where}: {_schema(url)}")
    except KpipeError as error:
        return Finding("database", "missing", error.message, error.fix)


def postgres(url: str) -> Finding:
    """Reachable and with which schema, where `url` names one."""
    if not url.startswith("postgresql"):
        return Finding(
            "postgres", "optional", "not used: only stages on several hosts need it", "apt install postgresql"
        )
    try:
        return Finding("postgres", "ok", f"reachable: {_schema(url)}")
    except KpipeError as error:
        return Finding("postgres", "missing", error.message, error.fix)


def _schema(url: str) -> str:
    from kpipe.store import schema
    from kpipe.store.database import Database

    found = Database.connect(url)
    try:
        revision = found.read(schema.current)
    finally:
        found.close()
    schema.check_known(revision)
    if revision is None:
        return "no tables yet, `kpipe run` makes them"
    if revision != schema.revisions()[-1]:
        return f"schema {revision}, `kpipe run` brings it to {schema.revisions()[-1]}"
    return f"schema {revision}"


def api_key() -> Finding:
    """Whether a key is there; its value is nobody's business. Raises ConfigError."""
    from kpipe.config import load

    name = load().config.coder.api_key_env
    if not name:
        return Finding("api key", "ok", "none is wanted: coder.api_key_env is empty")
    if not os.environ.get(name, "").strip():
        return Finding(
            "api key", "optional", f"{name} is not set; only coder.kind=openai needs it", f"export {name}=..."
        )
    return Finding("api key", "ok", f"{name} is set")


def sandbox() -> Finding:
    """What the kernel offers to confine candidates with."""
    abi = _landlock()
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    have = {
        f"Landlock ABI {abi}": abi > 0,
        "seccomp": actions.exists() and "kill_process" in actions.read_text(),
        "user namespaces": _succeeds(["unshare", "--user", "--map-root-user", "true"]),
        "bubblewrap": _succeeds(["bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"]),
    }
    detail = ", ".join(name if there else f"no {name.partition(' ABI')[0]}" for name, there in have.items())
    if abi < 1 or not have["seccomp"]:
        return Finding(
            "sandbox", "optional", detail, "Use Linux 5.13 or newer with Landlock: `lsm=landlock,...` at boot"
        )
    return Finding("sandbox", "ok", detail)


def _landlock() -> int:
    """Version of the kernel's Landlock; 0 or less where it has none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))


def disk() -> Finding:
    """Room where the run and where compiled kernels are kept."""
    places = {"here": Path.cwd(), "build cache": Path.home() / ".cache"}
    free = {name: shutil.disk_usage(_existing(path)).free / GIB for name, path in places.items()}
    detail = ", ".join(f"{room:.1f} GiB free {name}" for name, room in free.items())
    if closed := [path for path in places.values() if not os.access(_existing(path), os.W_OK | os.X_OK)]:
        return Finding(
            "disk", "missing", f"{closed[0]} cannot be written", "Work in a directory of your own; set HOME"
        )
    if min(free.values()) < NEEDED_DISK_GIB:
        return Finding("disk", "missing", detail, f"Free some space: a run needs {NEEDED_DISK_GIB} GiB")
    return Finding("disk", "ok", detail)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def memory() -> Finding:
    """What is available now, within the limit of the control group."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = dict(re.findall(r"^(\w+):\s+(\d+)", "\n".join(lines), re.M))
    room = int(kib["MemAvailable"]) * 1024 / GIB
    if (limit := _group_limit()) is not None:
        room = min(room, limit / GIB)
    detail = f"{room:.1f} GiB available"
    if room < NEEDED_MEMORY_GIB:
        return Finding("memory", "missing", detail, f"Close something: a run needs {NEEDED_MEMORY_GIB} GiB")
    return Finding("memory", "ok", detail)


def _group_limit() -> int | None:
    """Bytes that a container may still take; None without a limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        root = Path("/sys/fs/cgroup")
        if (root / limit).exists() and (text := (root / limit).read_text().strip()).isdigit():
            return int(text) - int((root / used).read_text())
    return None


def cores() -> Finding:
    """One core times kernels; everything else needs another."""
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        return Finding(
            "cores", "optional", f"{usable} usable: timings will be noisy", "Give the process two cores"
        )
    return Finding("cores", "ok", f"{usable} usable")


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """None when the program is not there or does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _succeeds(command: list[str]) -> bool:
    done = _run(command)
    return done is not None and done.returncode == 0


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
