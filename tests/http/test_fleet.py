"""A response to one process holds for the others: real clients in processes, over one Redis."""

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
    """`fleet("httpx", "aiohttp", ...)`: a process with such a client for each, and one limit of
    twenty calls.
    """
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


async def test_a_refusal_to_one_process_pauses_the_other(
    fleet: Fleet, service: Service, redis_url: str, name: str
) -> None:
    """With different clients: after a refusal for an hour, the other process sends nothing."""
    first, other = fleet("aiohttp", "requests")
    other.tell(service.url)
    assert await other.said() == "200"
    service.answers = [(429, {"Retry-After": "3600"})]

    first.tell(f"{service.url}/says")
    assert await first.said() == "429"
    await until(
        lambda status: status.retry_after > 3000, Limiter(name, Rate(20, per=3600), store=redis_url)
    )

    for process in (first, other):
        process.tell(service.url)
        held, seconds = (await process.said()).split()
        assert (held, 3000 < int(seconds) <= 3600) == ("held", True)
    assert service.calls == 2


async def test_a_limit_that_one_process_adopts_holds_for_the_other(
    fleet: Fleet, service: Service, redis_url: str, name: str
) -> None:
    """The server allows half of the declared limit, and says so to one process."""
    first, other = fleet("httpx2", "aiohttp", adopt=True)
    service.answers = [(200, {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9"})]

    first.tell(f"{service.url}/says")
    assert await first.said() == "200"
    await until(
        lambda status: status.limits[0].left == 9,
        Limiter(name, Rate(20, per=3600), store=redis_url),
    )

    for number in range(9):
        process = (first, other)[number % 2]
        process.tell(service.url)
        assert await process.said() == "200"
    for process in (first, other):
        process.tell(service.url)
        assert (await process.said()).startswith("held ")
    assert service.calls == 10
