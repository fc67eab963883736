"""Confine the calling process for good: limits, Landlock, seccomp. Needs no privileges, only ctypes.

The kernel under test is never allowed to fork, to execute, to reach the network or to write a file, so
what it does ends with its one process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8

# Number of each system call on (x86-64, aarch64); None where there is no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "reboot": (169, 142),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
}
# audit architecture, column above, numbers of clone, clone3, kill, tgkill, prlimit64, prctl, capset
_MACHINES = {
    "x86_64": (0xC000003E, 0, 56, 435, 62, 234, 302, 157, 126),
    "aarch64": (0xC00000B7, 1, 220, 435, 129, 131, 261, 167, 91),
}

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE, _MISSING = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_CLONE_THREAD = 0x00010000


def level() -> str:
    """'process' where this kernel can confine a process in full, else 'none'."""
    return "process" if _landlock_version() > 0 and platform.machine() in _MACHINES else "none"


def die_with_parent(parent: int) -> None:
    """Be killed when the parent (its pid, as known before the fork) ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def hide() -> None:
    """Keep processes of the same user from reading this one's memory and environment."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit(memory_bytes: int, cpu_s: int) -> None:
    """`memory_bytes` on top of what is mapped already; all kinds of memory count."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    for what, value in (
        (resource.RLIMIT_AS, mapped + memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _, ceiling = resource.getrlimit(what)
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(what, (value, value))


def confine(readable: Iterable[str]) -> None:
    """Refuse for good whatever a kernel does not need; only files below `readable` can be opened, to read.

    Raises OSError where the kernel lacks a mechanism: ask `level` first.
    """
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _drop_capabilities()
    _landlock(readable)
    _seccomp()


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def _drop_capabilities() -> None:
    """Without them root is like anybody else: it cannot raise its limits again, nor set the clock."""
    capset = _MACHINES[platform.machine()][-1]
    version_3 = 0x20080522
    header, none = struct.pack("Ii", version_3, 0), bytes(24)
    _check(_libc.syscall(capset, header, none), "capset")


def _landlock_version() -> int:
    return int(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1))


def _landlock(readable: Iterable[str]) -> None:
    version = _landlock_version()
    files = (1 << 13) - 1
    files |= (
        (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0) | (1 << 15 if version >= 5 else 0)
    )
    rights = struct.pack("QQQ", files, 3, 3)  # all of files, of TCP, of signals and abstract sockets
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _check(_libc.syscall(_LANDLOCK_CREATE, rights, size, 0), "landlock_create_ruleset")
    for path in readable:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        _check(
            _libc.syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed, fd), 0), "landlock_add_rule"
        )
        os.close(fd)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _seccomp() -> None:
    architecture, column, clone, clone3, kill, tgkill, prlimit64, prctl, _ = _MACHINES[platform.machine()]
    own = os.getpid()
    program = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_JUMP_EQUAL, architecture, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if column == 0:  # the x32 variant of each call
        program += [_op(_JUMP_GREATER, 0x40000000, 0, 1), _op(_RETURN, _REFUSE)]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            program += [_op(_JUMP_EQUAL, number, 0, 1), _op(_RETURN, _REFUSE)]
    program += [_op(_JUMP_EQUAL, clone3, 0, 1), _op(_RETURN, _MISSING)]  # libc then takes clone
    program += _unless_argument(clone, _op(_JUMP_BITS, _CLONE_THREAD, 1, 0))
    for number in (kill, tgkill):  # abort() and raise() must work
        program += _unless_argument(number, _op(_JUMP_EQUAL, own, 1, 0))
    # Nobody else's limits: a processor-time limit of one second would kill the zygote with all its children.
    program += _unless_argument(prlimit64, _op(_JUMP_EQUAL, 0, 2, 0), _op(_JUMP_EQUAL, own, 1, 0))
    program += _unless_argument(prctl, _op(_JUMP_EQUAL, _PR_SET_PDEATHSIG, 0, 1))
    program.append(_op(_RETURN, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(head), 0, 0), "seccomp")


def _unless_argument(number: int, *tests: bytes) -> list[bytes]:
    """Refuse the call unless one of the tests holds for its first argument: each jumps over the refusal."""
    return [
        _op(_JUMP_EQUAL, number, 0, len(tests) + 3),
        _op(_LOAD, _FIRST_ARGUMENT),
        *tests,
        _op(_RETURN, _REFUSE),
        _op(_LOAD, _NUMBER),
    ]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
