from typing import Any

import pytest

from kpipe.train.alarms import alarms
from kpipe.train.metrics import repetition
from kpipe.train.sinks import numbers

FINE: dict[str, Any] = {
    "skipped_steps": 0,
    "samples_trained": 8,
    "mismatch_ess": 0.9,
    "entropy": 1.0,
    "repetition_mean": 0.02,
    "completion_tokens_mean": 30.0,
}


def now(**values: float) -> dict[str, Any]:
    return {**FINE, **values}


@pytest.mark.parametrize(
    "metrics", [now(), now(entropy=0.2), now(repetition_mean=0.25), now(mismatch_ess=0.0)]
)
def test_silence(metrics: dict[str, Any]) -> None:
    assert alarms(metrics, [FINE, FINE]) == {}


@pytest.mark.parametrize(
    ("metrics", "name", "words"),
    [
        (now(skipped_steps=2), "gradient_not_finite", "2 optimizer steps"),
        (now(mismatch_ess=0.29), "low_ess", "29%"),
        (now(entropy=0.05), "entropy_collapse", "from 1.00 to 0.05"),
        (now(repetition_mean=0.4), "repetition", "40%"),
        (now(completion_tokens_mean=70.0), "length_drift", "70 tokens"),
        (now(completion_tokens_mean=10.0), "length_drift", "they had 30"),
    ],
)
def test_each_is_raised_by_its_number(metrics: dict[str, Any], name: str, words: str) -> None:
    raised = alarms(metrics, [FINE])
    assert list(raised) == [name]
    assert words in raised[name]


def test_the_first_update_has_nothing_to_drift_from() -> None:
    assert alarms(now(entropy=0.0, repetition_mean=0.9), []) == {}


def test_an_update_without_samples_says_nothing_about_its_policy() -> None:
    empty = now(samples_trained=0, entropy=0.0, mismatch_ess=0.0, completion_tokens_mean=1.0)
    assert alarms(empty, [FINE]) == {}


def test_what_was_always_repeated_is_no_news() -> None:
    wordy = now(repetition_mean=0.35)
    assert alarms(wordy, [wordy]) == {}


def test_updates_of_an_older_kpipe_lack_a_metric() -> None:
    old = {k: v for k, v in FINE.items() if k != "repetition_mean"}
    assert alarms(now(), [old, {**old, "entropy": None}]) == {}


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([], 0.0), ([1, 2, 3], 0.0), ([1, 2, 3, 4, 5], 0.0), ([7] * 13, 0.9), ([1, 2, 3, 4] * 2, 0.2)],
)
def test_repetition_counts_runs_of_four_tokens(tokens: list[int], share: float) -> None:
    assert repetition(tokens) == pytest.approx(share)


def test_numbers_have_names_of_their_own() -> None:
    metrics = {
        "loss": 0.5,
        "dropped": {"stale": 2},
        "reward_by_turn": [1.0, 2.0],
        "environment": {"torch": "2"},
        "speedup_geomean": None,
        "alarms": ["low_ess"],
    }
    assert dict(numbers(metrics)) == {
        "loss": 0.5,
        "dropped/stale": 2,
        "reward_by_turn/1": 1.0,
        "reward_by_turn/2": 2.0,
    }
