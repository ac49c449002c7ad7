"""RateLimiter: requests per second and concurrency together, in process, in virtual time."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate import RateLimiter, classics
from headgate.stores.memory.store import MemoryStore
from tests import virtual

Told = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Runs a test whose RateLimiters live in virtual time."""
    clock = virtual.VirtualClock()
    monkeypatch.setattr(classics, "MemoryStore", functools.partial(MemoryStore, clock))
    return lambda story: virtual.run(story, clock)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_rate_limiter_takes_a_rate_and_a_concurrency() -> None:
    assert list(inspect.signature(RateLimiter).parameters) == ["rate_limit", "concurrency_limit"]
    limiter = RateLimiter(20, 5)
    assert (limiter.rate_limit, limiter.concurrency_limit) == (20, 5)
    assert "RateLimiter" in repr(limiter)
    assert repr(limiter.throttle()) == "<a block of RateLimiter>"


def test_a_rate_limiter_passes_a_burst_and_then_its_rate(in_time: Told) -> None:
    """T1, T2: the first second's tokens are there at once, and then one comes every twentieth of a
    second.
    """

    async def story() -> None:
        limiter, moments = RateLimiter(rate_limit=20, concurrency_limit=100), []

        async def call() -> None:
            async with limiter.throttle():
                moments.append(round(now(), 6))

        await asyncio.gather(*(call() for _ in range(30)))

        assert moments == [0.0] * 20 + [round(number / 20, 6) for number in range(1, 11)]

    in_time(story())


def test_a_rate_limiter_never_exceeds_its_concurrency(in_time: Told) -> None:
    """S1, S6: five at once although the rate would allow more, in order."""

    async def story() -> None:
        limiter, inside, order = RateLimiter(1000, 5), set(), []

        async def call(number: int) -> None:
            async with limiter.throttle():
                order.append(number)
                inside.add(number)
                assert len(inside) <= 5
                await asyncio.sleep(1)
                inside.remove(number)

        await asyncio.gather(*(call(number) for number in range(23)))

        assert now() == 5.0
        assert order == list(range(23))

    in_time(story())


def test_a_caller_that_waits_for_a_permit_uses_no_token(in_time: Told) -> None:
    """The semaphore comes before the token: with slow calls, both are there at the same moments."""

    async def story() -> None:
        limiter, moments = RateLimiter(rate_limit=2, concurrency_limit=2), []

        async def call() -> None:
            async with limiter.throttle():
                moments.append(now())
                await asyncio.sleep(10)

        await asyncio.gather(*(call() for _ in range(6)))

        # If waiting had cost tokens, the bucket would have been empty each time the permits came
        # back.
        assert moments == [0, 0, 10, 10, 20, 20]

    in_time(story())


def test_errors_and_cancellations_give_the_permit_back(in_time: Told) -> None:
    """F5, F6: in the body, while waiting for a permit, while waiting for a token."""

    async def story() -> None:
        limiter = RateLimiter(rate_limit=1, concurrency_limit=1)
        with pytest.raises(ZeroDivisionError):
            async with limiter.throttle():
                1 / 0  # noqa: B018  # an error of the caller, and nothing more
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), limiter.throttle():
                pass  # its token would come at 1.0

        async with limiter.throttle():
            assert now() == 1.0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.25), limiter.throttle():
                    pass  # its permit is held

        async with limiter.throttle():
            assert now() == 2.0

    in_time(story())


def test_two_rate_limiters_share_nothing(in_time: Told) -> None:
    async def story() -> None:
        async with RateLimiter(1, 1).throttle(), RateLimiter(1, 1).throttle():
            assert now() == 0.0

    in_time(story())


def test_a_rate_limiter_can_be_entered_again_and_by_threads() -> None:
    limiter = RateLimiter(1000, 1)
    throttle = limiter.throttle()

    for _ in range(3):
        with throttle:
            pass
        with limiter.throttle():
            pass
