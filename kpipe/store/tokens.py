"""One turn's numbers in one zstd frame: prompt int32 | completion int32 | log-probabilities float32."""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

import zstandard

from kpipe.errors import StoreError

CODEC: Final = "zstd:i4,i4,f4"


def encode(prompt: list[int], completion: list[int], logprobs: list[float]) -> bytes:
    """Raises ValueError unless every completion token has one log-probability."""
    if len(completion) != len(logprobs):
        raise ValueError(f"{len(completion)} completion tokens, but {len(logprobs)} log-probabilities")
    return zstandard.compress(
        b"".join(_bytes(array(kind, xs)) for kind, xs in (("i", prompt), ("i", completion), ("f", logprobs)))
    )


def decode(
    codec: str, data: bytes, prompt_len: int, completion_len: int
) -> tuple[list[int], list[int], list[float]]:
    """Raises StoreError when the frame is not what its row says."""
    numbers = _frame(codec, data)
    if len(numbers) != 4 * (prompt_len + 2 * completion_len):
        raise StoreError("A stored token frame has the wrong length.", "Restore the database from a backup.")
    ids, logprobs = array("i"), array("f")
    ids.frombytes(numbers[: 4 * (prompt_len + completion_len)])
    logprobs.frombytes(numbers[4 * (prompt_len + completion_len) :])
    if sys.byteorder == "big":
        ids.byteswap()
        logprobs.byteswap()
    return ids[:prompt_len].tolist(), ids[prompt_len:].tolist(), logprobs.tolist()


def _frame(codec: str, data: bytes) -> bytes:
    if codec != CODEC:
        raise StoreError(f"Tokens are stored as {codec!r}, which this kpipe cannot read.", "Upgrade kpipe.")
    try:
        return zstandard.decompress(data)
    except zstandard.ZstdError:
        raise StoreError("A stored token frame is damaged.", "Restore the database from a backup.") from None


def _bytes(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
