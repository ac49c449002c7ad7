"""Tests of limited code, without waiting: a day of calls in a moment, and proof that none was too
early.

These are tests as pytest runs them (`pytest examples/testing.py`), which brings the clock as the
fixture `headgate_clock`. Here it is made by hand. Run it: `python examples/testing.py`
"""

from __future__ import annotations

import asyncio

from headgate import Concurrency, Limiter
from headgate.testing import ManualClock, Recorder, assert_at_rest, assert_never_over

LIMITS = ("100/hour", Concurrency(5))
api = Limiter("api", *LIMITS)


async def crawl(pages: int, recorder: Recorder) -> None:
    """The code under test, and a service that takes 20 seconds for each page."""

    async def page() -> None:
        async with api:
            with recorder.call():
                await asyncio.sleep(20)

    await asyncio.gather(*(page() for _ in range(pages)))


def test_a_day_of_crawling(headgate_clock: ManualClock) -> None:
    recorder = Recorder(headgate_clock)
    headgate_clock.run(crawl(2400, recorder))
    assert_never_over(recorder.calls, *LIMITS)
    assert_at_rest(api)
    print(
        f"{len(recorder.calls)} calls, at most {recorder.most} at once, took "
        f"{headgate_clock.elapsed() / 3600:.1f} hours"
    )


def test_a_caller_waits_for_its_turn_and_no_longer(headgate_clock: ManualClock) -> None:
    for _ in range(100):
        with api:
            pass
    refusal = api.try_acquire()
    assert not refusal
    headgate_clock.advance(refusal.retry_after)
    with api:
        print(f"the next call after {headgate_clock.elapsed():.0f} s")


if __name__ == "__main__":
    for test in (test_a_day_of_crawling, test_a_caller_waits_for_its_turn_and_no_longer):
        with ManualClock() as clock:
            test(clock)
