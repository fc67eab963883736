import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_grpo import advantage_of, discounted

from kpipe.domain.advantage import advantages, turn_returns

finite = st.floats(-5, 5, allow_nan=False)
maybe = st.none() | finite
quarters = st.none() | st.integers(-20, 20).map(lambda x: x / 4)
"""Their sums are exact, so that a mean of nothing is zero whoever adds it up."""


def test_the_discounted_return_of_the_worked_example() -> None:
    assert [round(g, 4) for g in turn_returns([-1.0, -0.5, 1.3, 2.3], 0.4) if g is not None] == [
        -0.8448,
        0.388,
        2.22,
        2.3,
    ]


@given(st.lists(finite, max_size=6), st.floats(0, 1))
def test_the_return_is_the_discounted_sum_of_what_follows(rewards: list[float], gamma: float) -> None:
    expected = [
        sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))
    ]
    assert turn_returns(rewards, gamma) == pytest.approx(expected)


@given(st.lists(maybe, max_size=6))
def test_nothing_is_known_before_an_unscored_turn(rewards: list[float | None]) -> None:
    returns = turn_returns(rewards, 0.4)
    for t, g in enumerate(returns):
        assert (g is None) == (None in rewards[t:])


def test_an_unscored_turn_leaves_the_later_ones_alone() -> None:
    assert turn_returns([1.0, None, 2.0, 3.0], 0.5) == [None, None, 3.5, 3.0]


def test_leave_one_out_compares_with_the_others() -> None:
    assert advantages([1.0, 2.0, None, 6.0], ["p"] * 4, estimator="rloo") == [-3.0, -1.5, None, 4.5]


def test_group_scaling_uses_the_sample_standard_deviation() -> None:
    got = advantages([1.0, 2.0, 6.0], ["p"] * 3, estimator="grpo", scale="group")
    assert [round(a, 4) for a in got if a is not None] == [-0.7559, -0.378, 1.1339]


def test_max_rl_divides_by_a_positive_mean_and_learns_nothing_from_another() -> None:
    assert advantages([1.0, 3.0], ["p"] * 2, estimator="max_rl") == [-0.5, 0.5]
    assert advantages([-1.0, 0.5], ["p"] * 2, estimator="max_rl") == [0.0, 0.0]


def test_a_group_of_one_has_no_advantage() -> None:
    assert advantages([4.0, None, 1.0], ["a", "a", "b"]) == [None, None, None]


@given(st.lists(st.tuples(maybe, st.integers(0, 3)), max_size=20), st.sampled_from(["grpo", "rloo"]))
def test_without_scaling_a_group_sums_to_zero(rows: list[tuple[float | None, int]], estimator: str) -> None:
    returns, keys = [r for r, _ in rows], [k for _, k in rows]
    out = advantages(returns, keys, estimator=estimator)  # type: ignore[arg-type]
    for key in set(keys):
        assert sum(a for a, k in zip(out, keys, strict=True) if k == key and a is not None) == pytest.approx(
            0, abs=1e-9
        )


@given(st.lists(st.tuples(finite, st.integers(0, 2)), min_size=2, max_size=15))
def test_batch_scaling_divides_every_group_by_the_same_number(rows: list[tuple[float, int]]) -> None:
    returns, keys = [r for r, _ in rows], [k for _, k in rows]
    plain = advantages(returns, keys, estimator="grpo")
    scaled = advantages(returns, keys, estimator="grpo", scale="batch", eps=1e-4)
    spread = statistics.stdev(returns) + 1e-4
    for a, b in zip(plain, scaled, strict=True):
        assert (a is None and b is None) or math.isclose(a / spread, b, rel_tol=1e-9, abs_tol=1e-12)  # type: ignore[operator,arg-type]


def test_keys_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        advantages([1.0, 2.0], ["p"])


@given(st.lists(maybe, max_size=6), st.floats(0, 1))
def test_returns_equal_the_reference(rewards: list[float | None], gamma: float) -> None:
    ours = turn_returns(rewards, gamma)
    for mine, theirs in zip(ours, discounted(rewards, gamma), strict=True):
        assert mine == (None if theirs is None else pytest.approx(theirs, abs=1e-9))


@given(
    st.lists(st.tuples(quarters, st.integers(0, 3)), min_size=1, max_size=14),
    st.sampled_from(["grpo", "rloo", "max_rl"]),
    st.sampled_from(["none", "group", "batch"]),
)
def test_every_estimator_and_scale_equals_the_reference(
    rows: list[tuple[float | None, int]], estimator: str, scale: str
) -> None:
    returns, keys = [g for g, _ in rows], [key for _, key in rows]
    ours = advantages(returns, keys, estimator=estimator, scale=scale)  # type: ignore[arg-type]
    for i, mine in enumerate(ours):
        theirs = advantage_of(i, returns, keys, estimator, scale)
        assert mine == (None if theirs is None else pytest.approx(theirs, rel=1e-6, abs=1e-9))
