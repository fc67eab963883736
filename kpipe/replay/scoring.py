"""Rewards again: stored verdicts under another formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kpipe.config import RewardConfig
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome
from kpipe.store import scores
from kpipe.store.database import Database
from kpipe.store.records import JudgedTurn, Sample


def rewarded(db: Database, groups: Sequence[Sequence[Sample]], cfg: RewardConfig) -> list[list[Sample]]:
    """The samples with the rewards that `cfg` gives to their stored outcomes."""
    judged = db.read(scores.judged_groups, [group[0].group_id for group in groups])
    new = {turn.id: reward_of(turn, cfg) for turn in judged}
    return [[replace(s, reward=new[s.turn_id]) for s in group] for group in groups]


def reward_of(turn: JudgedTurn, cfg: RewardConfig) -> float | None:
    """None for a fault: the machine or the coder was to blame."""
    if turn.outcome is None:
        return None
    return reward(Outcome(turn.outcome), turn.speedup, turn.speedup_low, cfg)
