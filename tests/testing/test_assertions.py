"""The assertions name the calls and the limit that was exceeded, and pass all other calls."""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from itertools import accumulate, count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import (
    Concurrency,
    Limiter,
    Quota,
    Rate,
    RateLimiter,
    Semaphore,
    TokenBucket,
    Window,
)
from headgate.limits import Limit
from headgate.testing import (
    Call,
    ManualClock,
    Recorder,
    assert_at_rest,
    assert_never_over,
    assertions,
)

LIMITS = [
    Window(3, per=10),
    Window(3, per=10, slack=1),
    Rate(2, per=7),
    Rate(2, per=7, capacity=5),
    Rate(2, per=7, capacity=5, steps=True),
    Quota(4, per=60),
    Concurrency(2),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_calls_that_a_limiter_passed_are_never_over_its_limit(name: str, limit: Limit) -> None:
    """At full load and after a rest, the assertion allows all that the gate grants."""
    with ManualClock() as clock:
        assert_never_over(clock.run(run_load(Limiter(name, limit), clock)), limit)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_assert_never_over_fails_for_a_limit_of_one_more(name: str, limit: Limit) -> None:
    """Calls of a limiter that allows one more at a time fail."""
    more = (
        {"capacity": limit.capacity + 1}
        if isinstance(limit, Concurrency)
        else {"amount": limit.amount + 1}
    )
    with ManualClock() as clock:
        loose = Limiter(name, type(limit)(**{**fields(limit), **more}))
        with pytest.raises(AssertionError, match="allows"):
            assert_never_over(clock.run(run_load(loose, clock)), limit)


def fields(limit: Limit) -> dict[str, Any]:
    return {field: getattr(limit, field) for field in limit.__dataclass_fields__}


async def run_load(limiter: Limiter, clock: ManualClock) -> list[Call]:
    """Make thirty calls of three seconds at once, and thirty more after a rest."""
    recorder = Recorder(clock)

    async def call() -> None:
        async with limiter:
            with recorder.call():
                await asyncio.sleep(3)

    for _ in range(2):
        await asyncio.gather(*(call() for _ in range(30)))
        await asyncio.sleep(1000)
    return recorder.calls


def test_assert_never_over_takes_moments_for_limits_that_hold_nothing() -> None:
    assert_never_over([0, 0, 10, 10], Window(2, per=10))
    with pytest.raises(AssertionError) as over:
        assert_never_over([0, 0, 9.5, 20], Window(2, per=10))
    assert str(over.value) == (
        "Calls 1 to 3 of 4 took 3 requests within 9.5 s, from 0 s after the first on, and 2 in any "
        "10 seconds allows 2 in that time."
    )


def test_the_failing_interval_may_begin_at_any_call() -> None:
    with pytest.raises(
        AssertionError, match="Calls 2 to 4 of 4 took 3 requests within 9 s, from 5 s after"
    ):
        assert_never_over([0, 5, 13, 14], "2 in any 10 seconds")


@pytest.mark.parametrize(
    ("limit", "moments"),
    [
        (Rate(2, per=10, capacity=3), [0, 0, 0, 5, 10]),
        (
            Rate(2, per=10, capacity=3, steps=True),
            [0, 0, 0, 0, 0, 10, 10],
        ),  # a step may come with the first call
        (Window(2, per=10, slack=1), [0, 0, 11, 11]),
        (Quota(2, per=60), [59, 59, 60, 60]),
        (Quota(2, per=60, slack=5), [54.999, 60]),
    ],
    ids=str,
)
def test_calls_that_a_limit_just_allows_pass_and_a_moment_closer_they_fail(
    limit: Limit, moments: list[float]
) -> None:
    assert_never_over(moments, limit)
    with pytest.raises(AssertionError, match="allows"):
        assert_never_over([*moments[:-1], moments[-1] - 0.001], limit)


PARTS = [Rate(2.5, per=7, capacity=5), Rate(2.5, per=7, capacity=5, steps=True)]


@pytest.mark.parametrize(
    "limit",
    [*LIMITS[:4], *PARTS, Rate(2, per=7, capacity=5, steps=True), Quota(4, per=60)],
    ids=str,
)
@given(gaps=st.lists(st.sampled_from([0, 0.5, 2, 3.5, 6.999, 7, 10, 11]), max_size=12))
@example(
    gaps=[3.5, 0, 0, 0, 3.5, 0, 0, 0.5]
)  # with steps, the worst interval may begin with a later call that counts
def test_the_worst_interval_is_found(limit: Limit, gaps: list[float]) -> None:
    """For any calls, compared with a look at all intervals."""
    assert isinstance(limit, Rate | Window | Quota)
    moments = [int(moment * 1_000_000) for moment in accumulate(gaps, initial=100.0)]
    pairs = [(first, last) for last in range(len(moments)) for first in range(last + 1)]
    over = any(
        last - first + 1 > assertions._most_between(limit, moments[first], moments[last])
        for first, last in pairs
    )

    with pytest.raises(AssertionError) if over else nullcontext():
        assert_never_over([moment / 1_000_000 for moment in moments], limit)


@pytest.mark.parametrize(
    "limit", [Rate(10, per=1, capacity=500), Window(500, per=50), Quota(500, per=50)], ids=str
)
def test_many_calls_are_checked_in_one_pass(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand calls, of which each has hundreds before it that still count."""
    looks = count()
    most = assertions._most_between
    monkeypatch.setattr(
        assertions, "_most_between", lambda *interval: next(looks) * 0 + most(*interval)
    )

    assert_never_over([0.1 * number for number in range(10_000)], limit)

    assert next(looks) <= 60_000


def test_units_are_counted_by_the_limits_that_have_them() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    with recorder.call(2, tokens=900):
        clock.advance(1)
    assert_never_over(
        recorder.calls,
        Window(2, per=60),
        Window(900, per=60, unit="tokens"),
        Window(1, per=60, unit="megabytes"),
    )
    for limit in (Window(1, per=60), Window(899, per=60, unit="tokens")):
        with pytest.raises(AssertionError, match=f"allows {limit.amount} in that time"):
            assert_never_over(recorder.calls, limit)


def test_the_ends_of_calls_say_which_run_at_once() -> None:
    calls = [Call(0, 2), Call(1, 3), Call(2, 4)]
    assert_never_over(calls, Concurrency(2))
    with pytest.raises(
        AssertionError,
        match=r"1 s after the first call 2 permits were held at once, and .* allows 1\.",
    ):
        assert_never_over(calls, Concurrency(1))
    with pytest.raises(TypeError, match="has no end"):
        assert_never_over([0.0], Concurrency(1))


def test_a_recorder_counts_the_running_calls() -> None:
    recorder = Recorder(ManualClock())
    with recorder.call(), pytest.raises(ZeroDivisionError), recorder.call():
        raise ZeroDivisionError
    assert (recorder.most, recorder.running, len(recorder.calls)) == (2, 0, 2)
    assert repr(recorder) == "<Recorder: 2 calls ended, 0 running, at most 2 at once>"


@pytest.mark.parametrize(
    ("units", "error"),
    [({"tokens": -900}, ValueError), ({"cost": 0}, ValueError), ({"tokens": "9"}, TypeError)],
)
def test_a_recorder_refuses_a_cost_that_acquire_refuses(
    units: dict[str, Any], error: type[Exception]
) -> None:
    """T7: a negative cost would hide one that is too high. Nothing is recorded."""
    recorder = Recorder(ManualClock())

    with pytest.raises(error, match=r"call\("), recorder.call(**units):
        pass

    assert (recorder.calls, recorder.running) == ([], 0)


def test_no_calls_pass_and_no_limits_are_an_error() -> None:
    assert_never_over([], "1/minute")
    for calls in ([], [0.0]):
        with pytest.raises(ValueError, match="has no limits"):
            assert_never_over(calls)
    with pytest.raises(ValueError, match="finite"):
        assert_never_over([math.nan], "1/minute")


# At rest ---------------------------------------------------------------------------------------


async def test_holders_and_waiters_are_not_at_rest(name: str) -> None:
    """Each is named, with its permits."""
    limiter = Limiter(name, Concurrency(1), "100/minute")
    assert_at_rest(limiter)
    held = await limiter.acquire()
    waiting = asyncio.create_task(enters(limiter))
    await asyncio.sleep(0)
    with pytest.raises(
        AssertionError, match=rf"Not at rest: '{name}': 1 of 1 permits used .* 1 waiting\. Release"
    ):
        assert_at_rest(limiter)
    with pytest.raises(AssertionError, match=name):
        assert_at_rest()
    held.release()
    await waiting
    assert_at_rest(limiter)


def test_a_waiter_for_a_rate_is_not_at_rest(name: str) -> None:
    limiter = Limiter(name, "1/minute")

    async def story() -> None:
        await enters(limiter)
        waiting = asyncio.create_task(enters(limiter))
        await asyncio.sleep(30)
        with pytest.raises(AssertionError, match="1 waiting"):
            assert_at_rest(limiter)
        await waiting

    with ManualClock() as clock:
        clock.run(story())


async def enters(limiter: Limiter) -> None:
    async with limiter:
        pass


def test_the_classics_can_be_checked(name: str, redis_url: str) -> None:
    bucket, throttled, far = (
        TokenBucket(name, 1, 60, 1),
        RateLimiter(5, 1),
        Semaphore(name, 1, redis_url=redis_url),
    )
    with bucket:
        assert_at_rest(bucket, throttled, far)
    for noun, entrance in ((throttled, throttled.throttle()), (far, far)):
        with entrance, pytest.raises(AssertionError, match="1 of 1 permits used"):
            assert_at_rest(bucket, noun)


def test_other_values_than_limiters_are_refused() -> None:
    with pytest.raises(TypeError, match=r"assert_at_rest\('api'\): give it limiters"):
        assert_at_rest("api")  # type: ignore[arg-type]
