"""Several kernels per suggestion, and a budget: real database, real sockets, verdicts written by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from store.store_world import DEVICE, GOOD, HARNESS, World

from kpipe.coder import open_coder
from kpipe.collect.budget import RunBudget
from kpipe.collect.rollout import Services, run_trajectory
from kpipe.collect.samples import choose, score
from kpipe.collect.verdicts import VerdictWatch
from kpipe.config import Config
from kpipe.domain.prompt import load_template
from kpipe.domain.verdict import Outcome, Verdict
from kpipe.errors import BudgetSpent
from kpipe.loopback.answers import code_reply, says
from kpipe.loopback.server import Loopback
from kpipe.policy.base import Suggestion, SuggestRequest
from kpipe.store import catalog, payments, prune, queue, rollouts, show
from kpipe.store.database import Database
from kpipe.store.records import Group, SampleResult, Trajectory
from kpipe.store.verify import verify

WRONG = Verdict(Outcome.WRONG_VALUE, log="off by one")
PRICES = {"usd_per_million_in": 0.0, "usd_per_million_out": 100.0, "max_tokens": 100, "continuations": 0}
WORST, PAID = 0.02, 0.005  # two replies of 100 tokens at most, one of 50 in fact


def kernel(number: int) -> str:
    return f"import torch\n\n\nclass ModelNew(torch.nn.Module):\n    number = {number}\n"


class Says:
    """A policy whose every suggestion is another."""

    def __init__(self, version: int) -> None:
        self.version = version

    async def suggest(self, request: SuggestRequest) -> tuple[Suggestion, int]:
        said = Suggestion(f"Suggestion {request.seed}.", [1], [2], [-0.5], "stop", {})
        return said, self.version


@pytest.fixture
async def server() -> AsyncIterator[Loopback]:
    async with Loopback() as running:
        yield running


class Bench:
    """A run whose coder is the loopback server; `verdicts` by kernel, GOOD for the rest."""

    def __init__(self, db: Database, server: Loopback, **coder: Any) -> None:
        self.db, self.world = db, World.make(db)
        settings = {"kind": "openai", "base_url": server.url, **PRICES, **coder}
        self.config = Config.model_validate({"coder": settings, "collect": {"max_steps_per_episode": 1}})
        self.watch = VerdictWatch(db, poll_s=0.005)
        self.verdicts: dict[str, Verdict] = {}
        self.budget = RunBudget(db, self.world.run.id, self.config.coder.max_usd)

    async def play(self, group: Group, member: Trajectory) -> None:
        async def lookup(key: str) -> Any:
            return await self.db.aread(rollouts.cached_call, key)

        coder = open_coder(self.config.coder, lookup, budget=self.budget)
        services = Services(
            db=self.db,
            config=self.config,
            seed=0,
            template=load_template("seed"),
            suggester=Says(self.world.base.id),
            coder=coder,
            verdict_of=self.watch.verdict_of,
            harness=HARNESS,
            device=DEVICE,
            draining=lambda: False,
        )
        stored = await self.db.aread(catalog.get, group.problem_id)
        helpers = [asyncio.create_task(self.watch.run()), asyncio.create_task(self._judge())]
        try:
            await run_trajectory(services, group, stored, member)
        finally:
            for task in helpers:
                task.cancel()
            await coder.close()

    async def _judge(self) -> None:
        while True:
            await self.db.awrite(self._judge_all)
            await asyncio.sleep(0.005)

    def _judge_all(self, conn: sa.Connection) -> None:
        """In one transaction: no job stays claimed when the test is over in between."""
        for job in queue.claim(conn, self.world.worker, DEVICE, 60.0, 8):
            queue.report(conn, job.id, job.lease, self.verdicts.get(job.kernel, GOOD))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.db.read(lambda conn: [tuple(row) for row in conn.execute(sa.text(query))])


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(database: Database, server: Loopback) -> MakeBench:
    return lambda **coder: Bench(database, server, **coder)


def test_best_and_mean() -> None:
    failed, bad, good = (
        SampleResult(None, None, "coder_failed"),
        SampleResult("wrong_value", -0.5, None),
        SampleResult("correct", 2.3, None),
    )
    assert choose([failed, bad, good, good]) == 2
    assert score([failed, bad, good], "best") == 2.3
    assert score([failed, bad, good], "mean") == pytest.approx(0.9)
    assert (choose([failed, failed]), score([failed], "mean")) == (0, None)
    assert choose([failed, bad]) == 1


@pytest.mark.parametrize(("how", "reward"), [("best", 2.3), ("mean", 0.9)])
async def test_every_sample_is_judged_and_stored(
    how: str, reward: float, bench: MakeBench, server: Loopback
) -> None:
    b = bench(samples=3, score=how, max_retries=0)
    server.plan = [says(code_reply(kernel(0))), says(code_reply(kernel(1))), says(None, refusal="No.")]
    b.verdicts = {kernel(0): WRONG}
    group, (member,) = b.world.open_group(1)
    await b.play(group, member)
    samples = b.rows("SELECT outcome, fault, chosen FROM v_sample ORDER BY outcome, fault")
    assert sorted(samples, key=str) == [
        ("correct", None, 1),
        ("wrong_value", None, 0),
        (None, "coder_failed", 0),
    ]
    ((outcome, earned, turn_reward),) = b.rows(
        "SELECT u.outcome, u.reward, s.turn_reward FROM turn u JOIN v_sample s ON s.turn_id = u.id WHERE s.chosen = 1"
    )
    assert (outcome, turn_reward) == ("correct", earned)
    assert earned == pytest.approx(reward)
    b.db.read(verify)
    ((calls, turns),) = b.rows("SELECT c.calls, k.coder_turns FROM v_coder_cost c, v_cache k")
    assert (calls, turns) == (3, 3)
    page = b.db.read(show.one_turn, 1)
    assert len(page["samples"]) == 3


async def test_a_suggestion_without_any_kernel_is_a_fault(bench: MakeBench, server: Loopback) -> None:
    b = bench(samples=2)
    server.default = says(None, refusal="No.")
    group, (member,) = b.world.open_group(1)
    await b.play(group, member)
    assert b.rows("SELECT fault, reward FROM turn") == [("coder_failed", None)]
    assert b.rows("SELECT state FROM rollout_group") == [("failed",)]
    b.db.read(verify)


async def test_one_sample_is_stored_as_ever(bench: MakeBench) -> None:
    b = bench()
    group, (member,) = b.world.open_group(1)
    await b.play(group, member)
    assert b.rows("SELECT count(*) FROM turn_sample") == [(0,)]
    assert b.rows("SELECT outcome FROM turn") == [("correct",)]


async def test_a_killed_collector_asks_only_for_what_is_missing(bench: MakeBench, server: Loopback) -> None:
    b = bench(samples=3)
    held = asyncio.Event()

    async def never(*_: Any) -> Any:
        await held.wait()

    server.plan = [says(code_reply(kernel(0))), says(code_reply(kernel(1))), never]
    group, (member,) = b.world.open_group(1)
    playing = asyncio.create_task(b.play(group, member))
    while server.plan or b.rows("SELECT count(*) FROM turn_sample") != [(2,)]:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    server.requests.clear()
    server.default = says(code_reply(kernel(2)))
    await b.play(group, member)
    assert len(server.requests) == 1
    assert b.rows("SELECT count(*), count(DISTINCT kernel_sha) FROM turn_sample") == [(3, 3)]
    assert b.rows("SELECT state FROM rollout_group") == [("complete",)]
    b.db.read(verify)


async def test_a_run_with_samples_can_be_pruned(bench: MakeBench, server: Loopback) -> None:
    b = bench(samples=2)
    server.plan = [says(code_reply(kernel(i))) for i in range(2)]
    group, (member,) = b.world.open_group(1)
    await b.play(group, member)
    prune.prune(b.db, [b.world.run.id])
    for table in ("turn_sample", "coder_payment", "coder_call", "evaluation", "turn"):
        assert b.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    b.db.read(verify)


async def test_the_budget_stops_before_it_is_exceeded(bench: MakeBench, server: Loopback) -> None:
    """Four calls are paid; a fifth might cost more than what is left, and is never sent."""
    server.default = says(code_reply())
    b = bench(max_usd=4 * PAID + WORST - 0.003)
    group, members = b.world.open_group(6)
    done = await asyncio.gather(*(b.play(group, m) for m in members), return_exceptions=True)
    stopped = [error for error in done if isinstance(error, BudgetSpent)]
    assert len(stopped) == 2
    assert "coder.max_usd" in stopped[0].message
    assert "--set coder.max_usd=" in stopped[0].fix
    account = b.db.read(payments.account, b.world.run.id)
    assert (account.paid, account.reserved) == (pytest.approx(4 * PAID), 0)
    b.budget.max_usd = 1.0
    known = [m for m in b.db.read(rollouts.trajectories, group.id) if m.state == "open"]
    await asyncio.gather(*(b.play(group, m) for m in known))
    assert b.db.read(payments.account, b.world.run.id).paid == pytest.approx(6 * PAID)
    assert b.rows("SELECT state FROM rollout_group") == [("complete",)]


async def test_two_collectors_share_one_budget(bench: MakeBench, server: Loopback) -> None:
    b = bench(max_usd=WORST + 0.001)
    other = RunBudget(b.db, b.world.run.id, b.config.coder.max_usd)
    await other.reserve("a request of the other", WORST)
    group, (member,) = b.world.open_group(1)
    with pytest.raises(BudgetSpent, match="lost"):
        await b.play(group, member)
    assert server.requests == []
    await other.release("a request of the other")
    await b.play(group, member)


async def test_a_lost_call_counts_until_it_is_answered(bench: MakeBench) -> None:
    b = bench()
    run_id = b.world.run.id
    assert b.db.write(payments.reserve, run_id, "lost", 0.6, 1.0) is None
    assert b.db.write(payments.reserve, run_id, "other", 0.6, 1.0) is not None
    assert b.db.write(payments.reserve, run_id, "lost", 0.6, 1.0) is None
    b.db.write(payments.settle, "lost", 0.1)
    assert b.db.write(payments.reserve, run_id, "other", 0.6, 1.0) is None
    account = b.db.read(payments.account, run_id)
    assert (account.paid, account.reserved) == (pytest.approx(0.1), pytest.approx(0.6))


async def test_a_budget_below_one_call_is_refused_at_once(bench: MakeBench) -> None:
    b = bench(max_usd=0.001)
    coder = open_coder(b.config.coder, None, budget=b.budget)  # type: ignore[arg-type]
    with pytest.raises(BudgetSpent):
        await coder.check()
    await coder.close()
