"""Which problem comes next, and whether a new group may be started at all. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

T = TypeVar("T")


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
