"""Packets: whole or refused, with their descriptors."""

from __future__ import annotations

import os

import pytest

from kpipe.evaluate import wire


def test_a_message_arrives_with_its_descriptors() -> None:
    here, there = wire.pair()
    file = wire.memory_file("test", b"content")
    wire.send(here, {"a": [1, "é"]}, (file, file))
    os.close(file)
    message, fds = wire.receive(there)
    assert message == {"a": [1, "é"]}
    assert [wire.read_file(fd) for fd in fds] == [b"content", b"content"]


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"3", b"[" * 50_000, b" " * 100_000])
def test_anything_else_is_malformed(data: bytes) -> None:
    here, there = wire.pair()
    here.send(data)
    with pytest.raises(wire.Malformed):
        wire.receive(there)


def test_the_end_is_noticed_on_both_ways() -> None:
    here, there = wire.pair()
    there.close()
    with pytest.raises(wire.Closed):
        wire.receive(here)
    with pytest.raises(wire.Closed):
        wire.send(here, {})
