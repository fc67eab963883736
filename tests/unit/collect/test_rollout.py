"""One trajectory, resumed: the coder is asked what it was asked before."""

from __future__ import annotations

from pathlib import Path

import pytest
from store.store_world import World

from kpipe.coder import CoderReply, CoderRequest
from kpipe.collect.draining import Draining
from kpipe.collect.rollout import Services, run_trajectory
from kpipe.config import CollectConfig, Config
from kpipe.domain.prompt import PromptTemplate
from kpipe.domain.verdict import Verdict
from kpipe.policy import Suggestion, SuggestRequest
from kpipe.store import catalog
from kpipe.store.database import Database


class Hostile:
    """Says what no database stores as it is; the coder answers only when it is asked again."""

    def __init__(self) -> None:
        self.asked: list[CoderRequest] = []

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        return Suggestion("fuse\0 it\udc80", [1], [2], [-0.5], "stop", {}), 1

    async def implement(self, request: CoderRequest) -> CoderReply:
        self.asked.append(request)
        if len(self.asked) == 1:
            raise Draining
        return CoderReply(None)


async def test_a_resumed_turn_asks_the_coder_the_same_byte_for_byte(tmp_path: Path) -> None:
    hostile = Hostile()

    async def nothing(evaluation: int) -> Verdict:
        raise AssertionError("there is no kernel")

    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}", create=True) as db:
        world = World.make(db)
        services = Services(
            db=db,
            config=Config(collect=CollectConfig(max_steps_per_episode=1)),
            seed=0,
            template=PromptTemplate("own", "$kernel_b"),
            suggester=hostile,
            coder=hostile,  # type: ignore[arg-type]
            verdict_of=nothing,
            harness="1",
            device="cpu",
            draining=lambda: False,
        )
        problem = db.read(catalog.get, world.problem_id)
        group, (member,) = world.open_group(1)
        with pytest.raises(Draining):
            await run_trajectory(services, group, problem, member)
        await run_trajectory(services, group, problem, member)
    first, second = hostile.asked
    assert first == second
    assert first.suggestion == "fuse\ufffd it\ufffd"
