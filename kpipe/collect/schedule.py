"""Which problem comes next, and whether a new group may be started at all. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

T = TypeVar("T")

EXPLORED = 0.05
"""Weight of a problem that is always or never solved, where one that is solved half of the time has 1."""


def problem_for(problems: Sequence[T], ordinal: int, seed: int, how: Literal["uniform", "round_robin"]) -> T:
    """The problem of group `ordinal`: a function of the seed, so a restart draws the same one.

    `round_robin` goes through a fresh shuffle of all problems before any is repeated.
    """
    if not problems:
        raise ValueError("no problems")
    if how == "uniform":
        return random.Random(f"{seed}/{ordinal}").choice(problems)
    lap, place = divmod(ordinal, len(problems))
    order = list(range(len(problems)))
    random.Random(f"{seed}/lap {lap}").shuffle(order)
    return problems[order[place]]


def by_solve_rate(problems: Sequence[T], solved: Sequence[tuple[int, int]], ordinal: int, seed: int) -> T:
    """A problem drawn by how much its group is likely to teach: most often one that is solved half of the time.

    A group whose members all succeed or all fail has no advantage to learn from. `solved` has (solved turns, turns)
    of each problem; a problem that was never tried counts as solved half of the time.
    """
    if not problems:
        raise ValueError("no problems")
    rates = [(wins + 1) / (turns + 2) for wins, turns in solved]
    weights = [max(EXPLORED, 4 * rate * (1 - rate)) for rate in rates]
    return random.Random(f"{seed}/{ordinal}").choices(problems, weights)[0]


def may_start(
    *,
    running: int,
    fresh: int,
    trainer_step: int,
    max_steps: int,
    groups_per_step: int,
    max_off_policy_steps: int,
) -> bool:
    """The capacity rule: a group that would be stale before it is trained is never started.

    `running` groups are open, `fresh` ones complete and not yet trained; near the end of the run no
    more are started than the remaining updates consume.
    """
    ahead = min(max_off_policy_steps + 1, max_steps - trainer_step)
    return running + fresh < ahead * groups_per_step
