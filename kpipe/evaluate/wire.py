"""Small messages with file descriptors between the evaluator's processes. Standard library only.

A message is one packet: a JSON object of at most `MAX_BYTES`, and a few descriptors. Anything larger
(sources, weights, tensors) travels as a memfd.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MAX_BYTES = 60_000
MAX_FDS = 6


class Closed(Exception):
    """The other side is gone."""


class Malformed(Exception):
    """The other side sent something that is no message."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep the bounds of packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Raises Closed when nobody listens any more."""
    try:
        socket.send_fds(sock, [json.dumps(message).encode()], fds)
    except (BrokenPipeError, ConnectionResetError):
        raise Closed from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors, which the caller closes. Raises Closed or Malformed."""
    try:
        data, ancillary, flags, _ = sock.recvmsg(MAX_BYTES, socket.CMSG_SPACE(MAX_FDS * 4))
    except ConnectionResetError:
        raise Closed from None
    fds = _descriptors(ancillary)
    if not data:
        close_all(fds)
        raise Closed
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("too long")
        message = json.loads(data)
        if not isinstance(message, dict):
            raise TypeError("not an object")
    except (ValueError, TypeError, RecursionError):
        close_all(fds)
        raise Malformed from None
    return message, fds


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def memory_file(name: str, data: bytes) -> int:
    """A memfd that holds `data`; the caller closes it."""
    fd = os.memfd_create(name)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def read_file(fd: int) -> bytes:
    """All of a memfd, whatever its position, and close it."""
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
