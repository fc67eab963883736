"""Who answers the trajectories of a collector: a model in this process by batches, or a server that batches itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kpipe.collect.batcher import Batcher
from kpipe.collect.rollout import start
from kpipe.config import Config
from kpipe.domain.harness import device_kind
from kpipe.domain.problem import Problem
from kpipe.domain.prompt import load_template, render_prompt, shorter_prompts
from kpipe.errors import PolicyError
from kpipe.policy import Policy, Suggestion, SuggestRequest, open_policy
from kpipe.store import policies
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run


class Suggesting(Protocol):
    """`version` is the newest one that has been taken over."""

    version: PolicyVersion

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        """The suggestion and the id of the policy version that made it. Raises PolicyError, Draining."""

    def drain(self) -> None:
        """Send away who waits, and all who come later."""

    async def run(self) -> None:
        """Work until cancelled."""


async def open_suggesting(
    db: Database, run: Run, config: Config, newest: PolicyVersion, problems: Sequence[Problem]
) -> Suggesting:
    """Ready to answer with the version `newest`, whose context holds the first prompt of every problem.

    Raises PolicyError.
    """

    async def latest() -> PolicyVersion | None:
        return await db.aread(policies.latest, run.id)

    policy = await asyncio.to_thread(open_policy, config.policy, Path(newest.path), newest.step)
    check_room(policy, config, problems)
    if config.policy.kind == "server":
        from kpipe.collect.streamer import Streamer
        from kpipe.policy.server import ServerPolicy

        assert isinstance(policy, ServerPolicy)
        return Streamer(policy, newest, latest)
    return Batcher(policy, newest, latest, config.policy.batch_size, config.policy.batch_wait_s)


def check_room(policy: Policy, config: Config, problems: Sequence[Problem]) -> None:
    """Refuse when the first prompt of a problem does not fit, whatever is left out of it. Raises PolicyError."""
    template, device = load_template(config.policy.prompt), device_kind(config.evaluate.device)
    states = [start(problem, device).state for problem in problems]
    shortest = [(shorter_prompts(template, s) or [render_prompt(template, s)])[-1] for s in states]
    rooms = policy.room(shortest)
    if min(rooms, default=0) >= 0:
        return
    missing, worst = min(zip(rooms, (p.name for p in problems), strict=True))
    raise PolicyError(
        f"The first prompt of problem {worst} is {-missing} tokens longer than the policy takes"
        f" ({sum(room < 0 for room in rooms)} of {len(rooms)} problems are too long).",
        "Raise policy.max_prompt_tokens, use a model or server with a longer context, or choose other problems"
        " with problems.levels or problems.names.",
    )
