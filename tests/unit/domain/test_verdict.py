from __future__ import annotations

import dataclasses
import json

import pytest

from kpipe.domain.verdict import Finding, Outcome, Verdict


def test_outcomes_are_stored_by_names_that_must_not_change() -> None:
    assert {o.value for o in Outcome} == {
        "compile_error",
        "load_error",
        "crash",
        "timeout",
        "oom",
        "wrong_shape",
        "wrong_dtype",
        "wrong_value",
        "nondeterministic",
        "hack",
        "suspect",
        "unchanged",
        "correct",
        "infra",
    }


def test_an_outcome_is_its_name_everywhere() -> None:
    assert json.dumps(Outcome.OOM) == '"oom"'
    assert Outcome("oom") is Outcome.OOM
    assert f"{Outcome.OOM}" == "oom"


def test_what_did_not_build_or_load_has_not_compiled() -> None:
    assert {o for o in Outcome if not o.compiled} == {
        Outcome.COMPILE_ERROR,
        Outcome.LOAD_ERROR,
        Outcome.INFRA,
    }


def test_a_verdict_is_final() -> None:
    verdict = Verdict(Outcome.CRASH, findings=(Finding("calls-reference", "error", "calls Model", 3),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.outcome = Outcome.CORRECT  # type: ignore[misc]
    assert Verdict(Outcome.CRASH).detail is not Verdict(Outcome.CRASH).detail
    assert dataclasses.asdict(verdict)["findings"][0]["line"] == 3
