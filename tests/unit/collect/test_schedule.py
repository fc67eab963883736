from __future__ import annotations

from collections import Counter

import pytest

from kpipe.collect.schedule import by_solve_rate, may_start, problem_for

ROOM = {"trainer_step": 0, "max_steps": 100, "groups_per_step": 4, "max_off_policy_steps": 1}


def test_round_robin_repeats_no_problem_before_all_were_drawn() -> None:
    problems = ["a", "b", "c", "d", "e"]
    for lap in range(4):
        drawn = [problem_for(problems, lap * 5 + i, 7, "round_robin") for i in range(5)]
        assert sorted(drawn) == problems


def test_laps_differ() -> None:
    problems = list(range(8))
    laps = {tuple(problem_for(problems, lap * 8 + i, 0, "round_robin") for i in range(8)) for lap in range(6)}
    assert len(laps) == 6


@pytest.mark.parametrize("how", ["uniform", "round_robin"])
def test_a_restart_draws_the_same_problem(how: str) -> None:
    problems = list(range(20))
    draw = [problem_for(problems, i, 3, how) for i in range(50)]  # type: ignore[arg-type]
    assert draw == [problem_for(problems, i, 3, how) for i in range(50)]  # type: ignore[arg-type]
    assert draw != [problem_for(problems, i, 4, how) for i in range(50)]  # type: ignore[arg-type]


def test_uniform_draws_all_about_equally_often() -> None:
    counts = Counter(problem_for("abcd", i, 0, "uniform") for i in range(4000))
    assert set(counts) == set("abcd")
    assert min(counts.values()) > 850


def test_no_problems_is_an_error() -> None:
    with pytest.raises(ValueError, match="no problems"):
        problem_for([], 0, 0, "uniform")


def test_capacity_counts_running_and_fresh_groups() -> None:
    assert may_start(running=0, fresh=7, **ROOM)
    assert may_start(running=7, fresh=0, **ROOM)
    assert not may_start(running=4, fresh=4, **ROOM)
    assert not may_start(running=8, fresh=0, **ROOM)


def test_zero_off_policy_steps_is_strictly_on_policy() -> None:
    strict = ROOM | {"max_off_policy_steps": 0}
    assert may_start(running=3, fresh=0, **strict)
    assert not may_start(running=0, fresh=4, **strict)


def test_nothing_is_started_that_no_update_would_use() -> None:
    end = ROOM | {"trainer_step": 99}
    assert may_start(running=0, fresh=3, **end)
    assert not may_start(running=0, fresh=4, **end)
    assert not may_start(running=0, fresh=0, **(ROOM | {"trainer_step": 100}))


def test_by_solve_rate_prefers_what_is_solved_half_of_the_time() -> None:
    solved = [(0, 40), (20, 40), (40, 40), (0, 0)]
    counts = Counter(by_solve_rate("nhae", solved, i, 0) for i in range(4000))
    assert counts["h"] > 3 * counts["n"]
    assert counts["h"] > 3 * counts["a"]
    assert counts["e"] > 3 * counts["n"], "what was never tried is tried"
    assert min(counts["n"], counts["a"]) > 40, "what is never solved now may be solved later"
    assert [by_solve_rate("nhae", solved, i, 3) for i in range(50)] == [
        by_solve_rate("nhae", solved, i, 3) for i in range(50)
    ]


def test_by_solve_rate_of_nothing() -> None:
    with pytest.raises(ValueError, match="no problems"):
        by_solve_rate([], [], 0, 0)
