from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kpipe.collect.batcher import Batcher
from kpipe.collect.draining import Draining
from kpipe.errors import PolicyError
from kpipe.policy.base import Suggestion, SuggestRequest
from kpipe.store.records import PolicyVersion


@dataclass
class Recording:
    """A policy that says which version and batch it answered in."""

    version: int = 0
    batches: list[list[str]] = field(default_factory=list)

    def suggest(self, requests: Sequence[SuggestRequest]) -> list[Suggestion]:
        self.batches.append([r.prompt for r in requests])
        return [Suggestion(f"{r.prompt}@{self.version}", (1,), (2,), (-0.5,), "stop", {}) for r in requests]

    def load(self, path: str, version: int) -> None:
        self.version = version


class Published:
    """The newest version in the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step = 0

    def version(self) -> PolicyVersion:
        return PolicyVersion(id=100 + self.step, run_id=1, step=self.step, path=str(self.path), digest="")

    async def latest(self) -> PolicyVersion:
        return self.version()


@contextlib.asynccontextmanager
async def running(batcher: Batcher) -> AsyncIterator[Batcher]:
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make(policy: Recording, published: Published, *, size: int, wait_s: float) -> Batcher:
    return Batcher(policy, published.version(), published.latest, size, wait_s)


async def ask(batcher: Batcher, names: Sequence[str]) -> list[tuple[Suggestion, int]]:
    return await asyncio.gather(*(batcher.suggest(SuggestRequest(n, 0)) for n in names))


async def test_a_full_batch_does_not_wait(tmp_path: Path) -> None:
    policy = Recording()
    async with running(make(policy, Published(tmp_path), size=3, wait_s=1e9)) as batcher:
        answers = await ask(batcher, ["a", "b", "c", "d", "e", "f"])
    assert [s.text for s, _ in answers] == ["a@0", "b@0", "c@0", "d@0", "e@0", "f@0"]
    assert policy.batches == [["a", "b", "c"], ["d", "e", "f"]]


async def test_the_rest_is_sampled_after_the_wait(tmp_path: Path) -> None:
    policy = Recording()
    async with running(make(policy, Published(tmp_path), size=4, wait_s=0.01)) as batcher:
        await ask(batcher, list("abcdef"))
    assert sorted(n for batch in policy.batches for n in batch) == list("abcdef")
    assert max(map(len, policy.batches)) == 4


async def test_the_version_that_sampled_is_the_version_that_is_told(tmp_path: Path) -> None:
    policy, published = Recording(), Published(tmp_path)
    async with running(make(policy, published, size=1, wait_s=0.0)) as batcher:
        (before,) = await ask(batcher, ["x"])
        published.step = 5
        (after,) = await ask(batcher, ["x"])
    assert (before[0].text, before[1]) == ("x@0", 100)
    assert (after[0].text, after[1]) == ("x@5", 105)


async def test_a_missing_checkpoint_reaches_the_caller_as_a_sentence(tmp_path: Path) -> None:
    published = Published(tmp_path)
    async with running(make(Recording(), published, size=1, wait_s=0.0)) as batcher:
        published.step, published.path = 1, tmp_path / "gone"
        with pytest.raises(PolicyError, match="gone"):
            await batcher.suggest(SuggestRequest("x", 0))


async def test_draining_sends_waiting_and_new_requests_away(tmp_path: Path) -> None:
    async with running(make(Recording(), Published(tmp_path), size=2, wait_s=1e9)) as batcher:
        waiting = asyncio.create_task(batcher.suggest(SuggestRequest("x", 0)))
        await asyncio.sleep(0)
        batcher.drain()
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await batcher.suggest(SuggestRequest("y", 0))
