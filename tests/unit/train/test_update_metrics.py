import pytest
from unit.train.making import changed, group

from kpipe.config import TrainConfig
from kpipe.domain.verdict import Outcome
from kpipe.store.records import StoredTurn
from kpipe.train.batch import score
from kpipe.train.metrics import batch_metrics
from kpipe.train.report import step_line

CFG = TrainConfig.model_validate({"gamma": 0.0})


def turn(trajectory: int, outcome: Outcome | None, speedup: float | None = None) -> StoredTurn:
    return StoredTurn(1, trajectory, 0, "settled", "", "stop", None, None, outcome, speedup, "", None, None)


def test_rewards_over_all_turns_and_by_turn() -> None:
    m = batch_metrics(score([group([[0.0, 1.0], [2.0, None], [4.0, 3.0]])], CFG), [], 0)
    assert m["reward_mean"] == 2.0
    assert m["reward_by_turn"] == [2.0, 2.0]
    assert m["reward_std"] == pytest.approx(2**0.5)
    assert (m["reward_p10"], m["reward_p90"]) == pytest.approx((0.4, 3.6))


def test_what_was_dropped_and_which_groups_taught_nothing() -> None:
    groups = [
        group([[1.0], [1.0]], number=1),
        group([[1.0], [2.0]], number=2),
        group([[None], [1.0]], number=3),
    ]
    m = batch_metrics(score(groups, CFG), [], 0)
    assert (m["groups"], m["groups_without_signal"]) == (3, 2)
    assert (m["samples"], m["samples_trained"]) == (6, 2)
    assert m["dropped"] == {"infra": 1, "singleton": 1, "zero_spread": 2}


def test_staleness_is_counted_from_the_version_that_is_trained() -> None:
    scored = score([group([[1.0], [2.0]], step=3), group([[1.0], [2.0]], number=2, step=5)], CFG)
    m = batch_metrics(scored, [], 5)
    assert (m["staleness_mean"], m["staleness_max"]) == (1.0, 2)


def test_lengths_and_cut_suggestions() -> None:
    samples = group([[1.0], [2.0]])
    samples[0] = changed(samples[0], completion=[1] * 6, finish_reason="length")
    m = batch_metrics(score([samples], CFG), [], 0)
    assert (m["completion_tokens_mean"], m["completion_tokens_max"]) == (4.0, 6)
    assert m["truncated_fraction"] == 0.5


def test_outcomes_leave_the_machine_out() -> None:
    turns = [
        turn(1, Outcome.COMPILE_ERROR),
        turn(1, Outcome.CORRECT, 4.0),
        turn(2, Outcome.WRONG_VALUE),
        turn(2, Outcome.CORRECT, 1.0),
        turn(3, None),
        turn(3, Outcome.INFRA),
    ]
    m = batch_metrics(score([group([[1.0], [2.0]])], CFG), turns, 0)
    assert m["compiled_fraction"] == 0.75
    assert m["correct_fraction"] == 0.5
    assert m["fast_1_fraction"] == 0.25
    assert m["speedup_geomean"] == pytest.approx(2.0)
    assert m["best_speedup_mean"] == pytest.approx((4 + 1 + 0) / 3)


def test_a_batch_without_any_reward_has_no_reward_metrics() -> None:
    m = batch_metrics(score([group([[None], [None]])], CFG), [], 0)
    assert m["reward_mean"] is m["reward_std"] is m["reward_p10"] is None
    assert m["reward_by_turn"] == []


METRICS = {
    "reward_mean": 1.84,
    "loss": -0.012,
    "kl": 0.031,
    "entropy": 1.2,
    "clip_fraction_low": 0.03,
    "clip_fraction_high": 0.011,
    "grad_norm": 0.53,
    "seconds": 2.1,
    "seconds_wait": 0.4,
    "skipped_steps": 0,
    "samples_trained": 250,
}


def test_one_readable_line() -> None:
    assert step_line(12, 30, METRICS) == (
        "update 12/30  reward 1.84  loss -0.0120  KL 0.0310  entropy 1.20  clipped 4.1%  grad norm 0.53"
        "  2.1 s after 0.4 s of waiting"
    )


def test_the_line_says_what_went_wrong() -> None:
    line = step_line(1, 30, {**METRICS, "reward_mean": None, "skipped_steps": 3, "samples_trained": 0})
    assert "reward none" in line
    assert "SKIPPED 3 steps" in line
    assert "NOTHING TO LEARN" in line
