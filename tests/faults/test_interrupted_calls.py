"""An exception comes while a call to Redis is made or written: of a signal handler, or for want of
memory. Every caller then gets an answer, and no permit is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Concurrency, Limiter
from headgate.stores.redis.session import session
from headgate.stores.redis.transport import node
from headgate.stores.redis.transport.connection import Connection
from tests.world import LONG


class Interrupt(Exception):
    pass


@pytest.fixture(
    params=[(session, "write_requests"), (node, "packed"), (Connection, "send")],
    ids=["made", "packed", "written"],
)
def interrupt_next(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Have the next call to the server end with an exception, at one of its steps."""
    owner, step = request.param
    real, armed = getattr(owner, step), []

    def raising(*arguments: Any) -> Any:
        done = real(*arguments)
        if armed:
            armed.pop()
            raise Interrupt
        return done

    monkeypatch.setattr(owner, step, raising)
    yield lambda: armed.append(True)
    assert not armed


async def entered(limiter: Limiter) -> None:
    async with limiter:
        pass


async def test_an_exception_in_a_call_leaves_no_caller_waiting(
    name: str, redis_url: str, interrupt_next: Callable[[], None]
) -> None:
    """L5, D6: given acquires of 3 names in one turn, when the next call is interrupted, then each
    caller passes, or raises that exception, and all permits are free afterwards.
    """
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    limiters = [Limiter(f"{name}-{i}", Concurrency(1), store=redis_url) for i in range(3)]
    await asyncio.gather(*map(entered, limiters))

    for _ in range(5):
        interrupt_next()
        async with asyncio.timeout(LONG):
            callers = [entered(limiter) for limiter in limiters for _ in range(2)]
            outcomes = await asyncio.gather(*callers, return_exceptions=True)

        assert sum(outcome is None for outcome in outcomes) >= 5
        assert all(outcome is None or isinstance(outcome, Interrupt) for outcome in outcomes)
        async with asyncio.timeout(LONG):
            await asyncio.gather(*map(entered, limiters))


def test_an_exception_in_a_call_leaves_no_thread_waiting(
    name: str, redis_url: str, interrupt_next: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5: the same for threads. Their first acquire declares the limits in headgate's own loop."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    outcomes: list[str] = []

    def work() -> None:
        try:
            with limiter:
                outcomes.append("passed")
        except Interrupt:
            outcomes.append("raised")

    interrupt_next()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(outcomes) == 3
    assert outcomes.count("passed") >= 2
    work()
    assert outcomes[-1] == "passed"
