"""Limits per minute, server headers and pauses: by a clock of the test's own, then against a server that keeps them."""

from __future__ import annotations

import asyncio
import math

import pytest
from unit.coder.asking import MakeCoder, request

from kpipe.coder.limits import Mirror, Told, Window, duration_s, read_headers
from kpipe.coder.pace import Pace
from kpipe.loopback.faults import HEADER
from kpipe.loopback.quota import Quota
from kpipe.loopback.server import Loopback


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def play(pace: Pace, clock: Clock, count: int, tokens: int = 1) -> list[float]:
    """The times at which so many requests go when each is sent as soon as it may be."""
    times = []
    for _ in range(count):
        while wait := pace.wait_s(tokens):
            clock.now += wait
        times.append(clock.now)
        pace.land(pace.take(tokens), answered=True)
    return times


def most_in_a_minute(times: list[float]) -> int:
    return max(sum(1 for t in times if start <= t < start + 60) for start in times)


@pytest.mark.parametrize("rpm", [1, 7, 60])
def test_no_minute_holds_more_requests_than_allowed(rpm: int) -> None:
    clock = Clock()
    times = play(Pace(8, rpm=rpm, clock=clock), clock, 3 * rpm + 1)
    assert most_in_a_minute(times) == rpm
    assert times[-1] - times[0] == pytest.approx(180)


def test_no_minute_holds_more_tokens_than_allowed() -> None:
    clock = Clock()
    times = play(Pace(8, tpm=1000, clock=clock), clock, 10, tokens=400)
    assert most_in_a_minute(times) == 2


def test_a_request_above_the_limit_goes_alone() -> None:
    clock = Clock()
    times = play(Pace(8, tpm=1000, clock=clock), clock, 3, tokens=5000)
    assert [t - times[0] for t in times] == pytest.approx([0, 60, 120])


def test_what_a_request_did_not_use_is_free_again() -> None:
    clock = Clock()
    pace = Pace(8, tpm=1000, clock=clock)
    ticket = pace.take(1000)
    assert pace.wait_s(500) == 60
    pace.land(ticket, answered=True, tokens=400)
    assert pace.wait_s(500) == 0
    assert pace.wait_s(700) == 60


def test_a_correction_after_its_minute_changes_nothing() -> None:
    window = Window(10)
    entry = window.take(10, 0.0)
    assert window.wait_s(10, 61.0) == 0
    window.correct(entry, 1)
    window.take(10, 61.0)
    assert window.wait_s(1, 62.0) == 59


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(
            ("6ms", 0.006),
            ("1s", 1),
            ("1m0s", 60),
            ("6m0.5s", 360.5),
            ("2h3m", 7380),
            ("1d", 86400),
            ("12", 12),
        ),
        *((text, None) for text in ("", "soon", "-1", "nan", "2026-01-01T00:00:00Z")),
    ],
)
def test_times_in_headers(text: str, seconds: float | None) -> None:
    assert duration_s(text) == (pytest.approx(seconds) if seconds is not None else None)


def test_headers_that_make_no_sense_are_not_there() -> None:
    assert read_headers({"x-ratelimit-remaining-requests": "many"}) == {}
    assert read_headers({"x-ratelimit-limit-tokens": "5"}) == {}
    assert read_headers({"x-ratelimit-remaining-tokens": "5"}) == {"tokens": Told(5)}


def test_the_servers_bucket_is_mirrored() -> None:
    mirror = Mirror()
    assert mirror.wait_s(1e9, 0.0) == 0
    mirror.hear(Told(2, 10, 8.0), 0, 0.0)  # 8 missing are refilled in 8 s
    assert mirror.wait_s(2, 0.0) == 0
    mirror.take(2, 0.0)
    assert mirror.wait_s(3, 0.0) == pytest.approx(3)
    assert mirror.wait_s(3, 2.0) == pytest.approx(1)
    mirror.hear(Told(5, 10, 8.0), 4, 2.0)
    assert mirror.wait_s(1, 2.0) == 0
    assert mirror.wait_s(2, 2.0) > 0


def test_a_header_is_not_believed_for_ever() -> None:
    mirror = Mirror()
    mirror.hear(Told(0, 200, 86400.0), 0, 0.0)
    assert mirror.wait_s(1, 0.0) == 60
    assert mirror.wait_s(1, 61.0) == 0


def test_an_answer_to_an_earlier_request_is_no_news() -> None:
    clock = Clock()
    pace = Pace(8, clock=clock)
    first, second = pace.take(1), pace.take(1)
    pace.hear(second, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-limit-requests": "60"})
    pace.hear(first, {"x-ratelimit-remaining-requests": "50", "x-ratelimit-limit-requests": "60"})
    assert pace.wait_s(1) == pytest.approx(1)


def test_a_wave_of_refusals_halves_once_and_answers_open_again() -> None:
    clock = Clock()
    pace = Pace(16, clock=clock)
    wave = [pace.take(1) for _ in range(16)]
    clock.now += 1
    for ticket in wave:
        pace.hold(ticket, 5.0)
        pace.land(ticket, answered=False)
    assert pace.allowed == 8
    assert pace.wait_s(1) == pytest.approx(5)
    clock.now += 5
    late = pace.take(1)
    pace.hold(late, 0.0)
    pace.land(late, answered=False)
    assert pace.allowed == 4
    play(pace, clock, 500)
    assert pace.allowed == 16


def test_at_least_one_request_is_always_allowed() -> None:
    clock = Clock()
    pace = Pace(4, clock=clock)
    for _ in range(10):
        clock.now += 1
        ticket = pace.take(1)
        pace.hold(ticket, 0.0)
        pace.land(ticket, answered=False)
    assert pace.allowed == 1
    assert not math.isinf(pace.wait_s(1) or 0)


async def test_who_waits_goes_when_another_comes_back() -> None:
    pace = Pace(1)
    first = await pace.admit(1)
    waiting = asyncio.create_task(pace.admit(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    pace.land(first, answered=True)
    await waiting
    assert pace.flying == 1


async def test_a_storm_of_429_is_not_answered_with_one(server: Loopback, coder_for: MakeCoder) -> None:
    """A server that admits 10 requests per half second is asked by 30 at once."""
    server.quota = Quota(10, window_s=0.5)
    coder = coder_for(concurrency=30, max_retries=10)
    replies = await asyncio.gather(*(coder.implement(request(f"Suggestion {i}.")) for i in range(30)))
    assert all(reply.kernel for reply in replies)
    assert server.statuses[200] == 30
    assert server.statuses[429] <= 30, "the first wave cannot know; after it almost nobody is refused"


async def test_the_servers_word_holds_back_the_others(server: Loopback, coder_for: MakeCoder) -> None:
    server.faults = ["429:0.3"]
    coder = coder_for(concurrency=1, max_retries=1)
    await asyncio.gather(*(coder.implement(request(f"Suggestion {i}.")) for i in range(3)))
    assert server.times[1] - server.times[0] >= 0.3
    assert HEADER not in server.headers[0]
    assert server.statuses == {429: 1, 200: 3}


async def test_waiting_for_a_limit_is_not_the_requests_time(server: Loopback, coder_for: MakeCoder) -> None:
    server.quota = Quota(2, window_s=0.6)
    coder = coder_for(concurrency=6, max_retries=10, timeout_s=0.5)
    replies = await asyncio.gather(*(coder.implement(request(f"Suggestion {i}.")) for i in range(6)))
    assert [reply.error for reply in replies] == [None] * 6
