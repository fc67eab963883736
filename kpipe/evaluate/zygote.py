"""The warm parent: has imported torch, has never computed, and forks one confined child per kernel.

Runs as ``python zygote.py FD CORES SYS_PATH`` with an environment that says nothing. It must not run a
parallel operation: the children of a process that has would hang in theirs.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
from typing import Any

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc hands freed memory back at once by default, and page faults drown what is timed
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TOP_PAD_": "134217728",
    # and which physical pages a process happens to get decides up to 8 % where they are small
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
SYSTEM_FILES = (
    *("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom"),
    *("/proc/cpuinfo", "/sys/devices/system/cpu"),
)


def main(control: socket.socket, cores: list[int]) -> None:
    """Fork on request until the worker is gone. Children are killed with this process."""
    import gc

    import torch

    from kpipe.evaluate import harness, sandbox, wire

    os.sched_setaffinity(0, cores)
    sandbox.hide()
    level = sandbox.level()
    torch.backends.cpu.get_cpu_capability()  # the children cannot look for themselves
    gc.collect()
    gc.freeze()
    wire.send(control, {"ready": True, "sandbox": level})
    with selectors.DefaultSelector() as selector:
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wake_read:
                    wake_read.recv(4096)
                    _reap(control)
                    continue
                try:
                    request, fds = wire.receive(control)
                except wire.Closed:
                    signal.set_wakeup_fd(-1)  # its socket is closed before the last children end
                    return
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    _child(parent, request, fds, level, harness, sandbox)
                wire.close_all(fds)
                handle = os.pidfd_open(pid)
                wire.send(control, {"forked": pid}, (handle,))
                os.close(handle)


def _reap(control: socket.socket) -> None:
    from kpipe.evaluate import wire

    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        wire.send(
            control, {"exited": pid, "status": os.waitstatus_to_exitcode(status), "peak_kb": usage.ru_maxrss}
        )


def _child(
    parent: int, request: dict[str, Any], fds: list[int], level: str, harness: Any, sandbox: Any
) -> None:
    """Never returns. Descriptors: source, builds, runs, and the pipe for what is printed."""
    try:
        sandbox.die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        source, builds, runs = _arrange(fds)
        text = _read(source)
        sandbox.limit(request["memory_bytes"], request["cpu_s"])
        if level != "none":
            sandbox.confine((*_python_files(), *SYSTEM_FILES, *request["readable"]))
        harness.serve(request["name"], text, socket.socket(fileno=builds), socket.socket(fileno=runs))
    finally:
        os._exit(0)


def _arrange(fds: list[int]) -> tuple[int, int, int]:
    """Keep only the given descriptors, as 0 (nothing), 1 and 2 (the pipe), 3, 4, 5."""
    source, builds, runs, printed = (os.dup2(fd, 900 + i) for i, fd in enumerate(fds))
    nothing = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((nothing, 0), (printed, 1), (printed, 2), (source, 3), (builds, 4), (runs, 5)):
        os.dup2(fd, place)
    os.closerange(6, 65536)
    return 3, 4, 5


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _python_files() -> set[str]:
    import torch

    paths = sysconfig.get_paths()
    return {
        *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(os.path.join(root, "lib") for root in (sys.prefix, sys.base_prefix)),
        os.path.dirname(os.path.dirname(os.path.realpath(torch.__file__))),
    }


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[3])
    main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
