import math

import pytest

from kpipe.config import RewardConfig
from kpipe.domain.reward import reward
from kpipe.domain.verdict import Outcome

SEED = RewardConfig()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("outcome", "speedup", "expected"),
    [
        (Outcome.COMPILE_ERROR, None, -1.0),
        (Outcome.LOAD_ERROR, None, -1.0),
        (Outcome.CRASH, None, -0.5),
        (Outcome.TIMEOUT, None, -0.5),
        (Outcome.OOM, None, -0.5),
        (Outcome.WRONG_SHAPE, None, -0.5),
        (Outcome.WRONG_DTYPE, None, -0.5),
        (Outcome.WRONG_VALUE, None, -0.5),
        (Outcome.NONDETERMINISTIC, None, -0.5),
        (Outcome.HACK, None, -0.5),
        (Outcome.SUSPECT, None, -0.5),
        (Outcome.UNCHANGED, None, 0.0),
        (Outcome.CORRECT, 0.5, 0.8),
        (Outcome.CORRECT, 2.0, 2.3),
        (Outcome.INFRA, None, None),
    ],
)
def test_the_default_formula(outcome: Outcome, speedup: float | None, expected: float | None) -> None:
    assert reward(outcome, speedup, None, SEED) == expected


def test_every_outcome_has_a_reward_or_none() -> None:
    for outcome in Outcome:
        value = reward(outcome, 1.5, 1.4, SEED)
        assert (value is None) == (outcome is Outcome.INFRA)


@pytest.mark.parametrize("speedup", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_correct_kernel_without_a_usable_time_is_a_mistake_of_the_caller(speedup: float | None) -> None:
    with pytest.raises(ValueError, match="positive speedup"):
        reward(Outcome.CORRECT, speedup, None, SEED)


def test_a_mismeasured_speedup_is_capped() -> None:
    assert reward(Outcome.CORRECT, 50.0, None, SEED.model_copy(update={"speedup_cap": 3.0})) == 3.3


def test_a_speedup_below_the_floor_earns_the_base_only() -> None:
    cfg = SEED.model_copy(update={"speedup_floor": 1.0})
    assert reward(Outcome.CORRECT, 0.99, None, cfg) == 0.3
    assert reward(Outcome.CORRECT, 1.0, None, cfg) == 1.3


def test_the_lower_bound_counts_when_asked_for_and_known() -> None:
    cfg = SEED.model_copy(update={"use_lower_bound": True})
    assert reward(Outcome.CORRECT, 2.0, 1.5, cfg) == 1.8
    assert reward(Outcome.CORRECT, 2.0, None, cfg) == 2.3
    assert reward(Outcome.CORRECT, 2.0, 1.5, SEED) == 2.3


def test_the_log_transform_makes_no_change_worth_nothing() -> None:
    cfg = SEED.model_copy(update={"transform": "log", "speedup_weight": 2.0})
    assert reward(Outcome.CORRECT, 1.0, None, cfg) == 0.3
    assert reward(Outcome.CORRECT, math.e, None, cfg) == pytest.approx(2.3)
