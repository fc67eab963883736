import random

import pytest
from unit.train.making import changed, group

from kpipe.config import TrainConfig
from kpipe.train.batch import batch_hash, score
from kpipe.train.step import row_of, trained_samples


def config(**values: object) -> TrainConfig:
    return TrainConfig.model_validate({"gamma": 0.5, "advantage": "grpo", "scale_rewards": "none", **values})


def test_returns_are_discounted_over_the_turns_of_a_trajectory_only() -> None:
    scored = score([group([[1.0, 2.0], [0.0, 4.0]])], config())
    assert [s.return_ for s in scored] == [2.0, 2.0, 2.0, 4.0]


def test_turns_are_compared_with_the_same_turn_of_the_group() -> None:
    scored = score([group([[0.0, 2.0], [1.0, 4.0]])], config(gamma=0.0, group_by="problem_turn"))
    assert [s.advantage for s in scored] == [-0.5, -1.0, 0.5, 1.0]


def test_or_with_every_turn_of_the_group() -> None:
    scored = score([group([[0.0, 2.0], [1.0, 5.0]])], config(gamma=0.0, group_by="problem"))
    assert [s.advantage for s in scored] == [-2.0, 0.0, -1.0, 3.0]


def test_groups_are_never_compared_with_each_other() -> None:
    groups = [group([[0.0], [1.0]], number=1), group([[10.0], [12.0]], number=2)]
    assert [s.advantage for s in score(groups, config())] == [-0.5, 0.5, -1.0, 1.0]


def test_the_order_of_the_samples_does_not_matter() -> None:
    samples = group([[0.0, 1.0, 3.0], [2.0, 5.0, 1.0]])
    mixed = random.Random(0).sample(samples, len(samples))
    assert score([mixed], config()) == score([samples], config())


def test_an_unknown_reward_drops_its_turn_and_those_before_it() -> None:
    scored = score([group([[1.0, None, 2.0], [1.0, 1.0, 3.0], [2.0, 2.0, 4.0]])], config())
    assert [s.drop_reason for s in scored[:3]] == ["infra", "infra", None]
    assert [(s.return_, s.advantage) for s in scored[:2]] == [(None, None)] * 2


def test_an_unknown_reward_is_in_no_baseline() -> None:
    with_fault = score([group([[None], [1.0], [3.0]])], config())
    without = score([group([[1.0], [3.0]])], config())
    assert [s.advantage for s in with_fault[1:]] == [s.advantage for s in without]


def test_a_turn_that_said_nothing_is_infrastructure() -> None:
    samples = group([[1.0], [2.0], [3.0]])
    samples[0] = changed(samples[0], completion=[], logprobs=[], finish_reason="prompt_too_long")
    scored = score([samples], config())
    assert [s.drop_reason for s in scored] == ["infra", None, None]
    assert scored[1].advantage == -0.5


def test_a_cut_suggestion_is_trained_like_any_other() -> None:
    samples = group([[1.0], [2.0]])
    samples[0] = changed(samples[0], finish_reason="length")
    assert score([samples], config())[0].advantage == -0.5


def test_or_left_out_where_that_is_asked_for_and_the_others_still_compared_with_it() -> None:
    samples = group([[1.0], [2.0], [6.0]])
    samples[0] = changed(samples[0], finish_reason="length")
    scored = score([samples], config(drop_truncated=True))
    assert [s.drop_reason for s in scored] == ["truncated", None, None]
    assert [s.advantage for s in scored] == [None, -1.0, 3.0]
    assert scored[0].return_ == 1.0


def test_nobody_to_compare_with() -> None:
    scored = score([group([[1.0, 5.0], [2.0]])], config(group_by="problem_turn"))
    assert [s.drop_reason for s in scored] == [None, "singleton", None]
    assert scored[1].return_ == 5.0
    assert scored[1].advantage is None


@pytest.mark.parametrize(("spread", "reason"), [(0.0, "zero_spread"), (0.05, "zero_spread"), (0.2, None)])
def test_equal_returns_teach_nothing(spread: float, reason: str | None) -> None:
    scored = score([group([[1.0], [1.0 + spread]])], config(min_group_spread=0.1))
    assert {s.drop_reason for s in scored} == {reason}
    assert all((s.advantage is None) == (reason is not None) for s in scored)


def test_the_hash_knows_every_part_of_the_batch() -> None:
    samples = group([[1.0], [2.0]])
    assert batch_hash(samples) == batch_hash(group([[1.0], [2.0]]))
    others = [
        group([[1.0], [2.5]]),
        group([[1.0], [2.0]], step=1),
        group([[1.0], [2.0]], number=2),
        samples[::-1],
        [samples[0], changed(samples[1], prompt=[9])],
        [samples[0], changed(samples[1], completion=[4, 6])],
        [samples[0], changed(samples[1], prompt=[3, 4], completion=[5])],
        [samples[0], changed(samples[1], logprobs=[-1.0, -2.5])],
    ]
    assert len({batch_hash(x) for x in [samples, *others]}) == len(others) + 1


def test_what_is_stored_keeps_each_weight_with_its_turn() -> None:
    scored = score([group([[1.0], [None], [2.0]]), group([[1.0], [4.0]], number=2)], config())
    stored = trained_samples(scored, [0.1, 0.2, 0.3, 0.4])
    assert [s.turn_id for s in stored] == [1000, 1001, 1002, 2000, 2001]
    assert [s.weight for s in stored] == [0.1, None, 0.2, 0.3, 0.4]
    assert [s.drop_reason for s in stored] == [None, "infra", None, None, None]
    assert [s.return_ for s in stored] == [1.0, None, 2.0, 1.0, 4.0]


def test_a_dropped_sample_never_becomes_a_row() -> None:
    kept, dropped, _ = score([group([[1.0], [None], [2.0]])], config())
    assert row_of(kept).advantage == -0.5
    with pytest.raises(ValueError, match="turn 1001 was dropped: infra"):
        row_of(dropped)
