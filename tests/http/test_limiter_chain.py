"""The texts of exempt lists, and how a call's permits go back when it cannot have them all."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Concurrency, Limiter
from headgate.http.feedback import FeedbackOptions
from headgate.http.limiter_chain import LimiterChain, Place, check_exempt, matches
from tests.world import used, waiting


@pytest.mark.parametrize(
    ("rule", "host", "path", "met"),
    [
        ("localhost", "localhost", "/any/where", True),
        ("localhost", "not.localhost", "/", False),
        ("*.host", "a.b.host", "/", True),
        ("*.host", "host", "/", False),
        ("*.host", "ahost", "/", False),
        ("/health", "host", "/health", True),
        ("/health", "host", "/health/deep", True),
        ("/health/", "host", "/health", True),
        ("/health", "host", "/healthy", False),
        ("/health", "host", "/a/health", False),
        ("host/health", "host", "/health", True),
        ("host/health", "other", "/health", False),
        ("host/health", "host", "/", False),
        ("host/", "host", "/a", True),
        ("/", "host", "/a", True),
    ],
)
def test_a_text_of_the_exempt_list_matches_hosts_and_paths(
    rule: str, host: str, path: str, met: bool
) -> None:
    assert matches(rule, Place(host, path)) is met
    assert check_exempt("limit", [rule]) == (rule,)


@pytest.mark.parametrize(
    "rule",
    [
        *("", "https://host", "host:443", "Host", "/health?a=1"),
        *("*", "*/health", "*.", "*host", "api.*.host", "*.*.host", " host"),
        *(".host", "*..host", "user@host"),
    ],
)
def test_an_exempt_text_that_could_match_no_request_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="write a host in lower case"):
        check_exempt("limit", [rule])


def chain_of(*limiters: Limiter) -> LimiterChain[Place]:
    return LimiterChain(
        "limit", limiters, None, (), lambda place: place, FeedbackOptions(feedback=False)
    )


async def test_a_task_that_is_cancelled_at_the_second_limiter_gives_the_first_back(
    name: str,
) -> None:
    """The counts of its rates come back too: nothing was sent."""
    first, second = (
        Limiter(f"{name}-1", Concurrency(1), "100/hour"),
        Limiter(f"{name}-2", Concurrency(1)),
    )
    chain = chain_of(first, second)
    async with second:
        entering = asyncio.create_task(chain.enter(Place("host", "/")))
        await waiting(second, 1)
        assert used(first.status()) == [1, 1]
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    assert used(first.status()) == [0, 0]
    assert used(second.status()) == [0]


async def test_permits_may_be_released_twice_and_from_a_thread(name: str) -> None:
    limiter, other = Limiter(name, Concurrency(2)), Limiter(f"{name}-2", Concurrency(2))
    permits = await chain_of(limiter, other).enter(Place("host", "/"))
    assert (permits.needs_end(), used(limiter.status())) == (True, [1])

    await asyncio.to_thread(permits.release)
    permits.release()

    assert (permits.needs_end(), used(limiter.status())) == (False, [0])
