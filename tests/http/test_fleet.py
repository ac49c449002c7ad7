"""What a server tells one process holds the others: real clients, in processes of their own, over one server of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import Limiter, Rate
from tests.http.service import Service
from tests.processes import Running, running
from tests.world import until

Fleet = Callable[..., list[Running]]
TWENTY = "Rate(20, per=3600),"


@pytest.fixture
def fleet(redis_url: str, name: str) -> Iterator[Fleet]:
    """`fleet("httpx", "aiohttp", ...)`: a process with such a client for each, all on one limit of twenty calls."""
    with ExitStack() as stack:

        def start(*kinds: str, **options: Any) -> list[Running]:
            started = [
                stack.enter_context(running("client", redis_url, name, kind, TWENTY, options))
                for kind in kinds
            ]
            for process in started:
                assert process.line() == "ready"
            return started

        yield start


async def test_a_pause_that_one_process_was_told_holds_the_other(
    fleet: Fleet, service: Service, redis_url: str, name: str
) -> None:
    """Whatever their clients are: given one that is refused for an hour, then what the other would send is not sent."""
    told, other = fleet("aiohttp", "requests")
    other.tell(service.url)
    assert await other.said() == "200"
    service.answers = [(429, {"Retry-After": "3600"})]

    told.tell(f"{service.url}/says")
    assert await told.said() == "429"
    await until(
        lambda status: status.retry_after > 3000, Limiter(name, Rate(20, per=3600), store=redis_url)
    )

    for process in (told, other):
        process.tell(service.url)
        held, seconds = (await process.said()).split()
        assert (held, 3000 < int(seconds) <= 3600) == ("held", True)
    assert service.calls == 2


async def test_a_limit_that_one_process_was_told_is_that_of_the_others(
    fleet: Fleet, service: Service, redis_url: str, name: str
) -> None:
    """Given twice what the server allows, when it says so to one of two, then the two have half of it together."""
    told, other = fleet("httpx2", "aiohttp", adopt=True)
    service.answers = [(200, {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9"})]

    told.tell(f"{service.url}/says")
    assert await told.said() == "200"
    await until(
        lambda status: status.limits[0].left == 9,
        Limiter(name, Rate(20, per=3600), store=redis_url),
    )

    for number in range(9):
        process = (told, other)[number % 2]
        process.tell(service.url)
        assert await process.said() == "200"
    for process in (told, other):
        process.tell(service.url)
        assert (await process.said()).startswith("held ")
    assert service.calls == 10
