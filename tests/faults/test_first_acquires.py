"""The first acquire of a name by a thread declares the limits on the threads' own connection.

A fault on the way leaves one permit and one charge, or none.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Barrier
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, Limit, Limiter, MaxSleepExceededError, Permit, Rate, StoreError
from headgate.internals import queue_of
from headgate.stores.redis import fast_path, threads
from headgate.stores.redis.fast_path import FastPath
from headgate.stores.redis.protocol.operations import KNOWN
from headgate.stores.redis.session import whole_pause
from headgate.stores.redis.transport import endpoint, reconnection
from tests.faults.proxy import Proxy
from tests.faults.scene import commands_of, elsewhere
from tests.rights import rights_without_functions
from tests.servers import Server
from tests.world import LONG, at_rest, long, soon, used

TOKENS = Rate(1000, per=10_000_000, unit="tokens")
LIMITS = Concurrency(2, lease=600.0), TOKENS  # no lease ends within a test
THREADS, NAMES = 4, 25


def connect(limiter: Limiter) -> None:
    """Let the threads of this process open their connection, and wait for all calls."""
    for _ in range(2):  # by the portal, then directly
        limiter.acquire_sync().release()
    limiter.status()


async def acquired(limiter: Limiter, **options: Any) -> Permit:
    return await soon(asyncio.to_thread(limiter.acquire_sync, **options))


def test_a_thread_makes_one_call_for_a_new_name_or_key(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an open connection, when a thread uses a name or a key for the first time, then one
    call declares the limits and grants. After it they are known.
    """
    monkeypatch.setattr(whole_pause, "TRUSTED", long())
    monkeypatch.setattr(whole_pause, "ASK_AGAIN", long())
    known = Limiter(name, TOKENS, store=redis_url)
    connect(known["a"])

    for new in (Limiter(f"{name}-new", TOKENS, store=redis_url), known["b"]):
        admin.config_resetstat()
        permit = new.acquire_sync(tokens=5)
        assert commands_of(admin)["fcall"] == 1
        assert isinstance(permit.home, FastPath)
        assert queue_of(new).limits.declares == KNOWN
        assert used(new.status()) == [5]


def test_a_thread_makes_one_call_for_a_new_name_on_a_server_without_functions(name: str) -> None:
    server = Server(rights=rights_without_functions())
    server.start()
    try:
        connect(Limiter(name, TOKENS, store=server.user_url))
        server.admin.config_resetstat()
        permit = Limiter(f"{name}-new", TOKENS, store=server.user_url).acquire_sync()
        calls = commands_of(server.admin)
        assert isinstance(permit.home, FastPath)
        assert (calls.get("evalsha"), calls.get("eval")) == (1, None)
    finally:
        server.stop()


def test_threads_that_use_a_new_name_at_once_never_exceed_its_capacity(
    name: str, redis_url: str
) -> None:
    """S1, T10: given threads that use one new name at the same moment, then one takes the only
    permit, and each of the others is refused.
    """
    connect(Limiter(name, *LIMITS, store=redis_url))
    together = Barrier(THREADS)

    def passes(its: str) -> Permit | None:
        together.wait(long())
        try:
            return Limiter(its, Concurrency(1), store=redis_url).acquire_sync(max_sleep=0)
        except MaxSleepExceededError:
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(NAMES):
            new = f"{name}-{number}"
            (permit,) = filter(None, pool.map(passes, [new] * THREADS))
            assert used(Limiter(new, Concurrency(1), store=redis_url).status()) == [1]
            permit.release()


# Other limits -------------------------------------------------------------------------------------


async def test_the_limits_of_a_thread_replace_those_of_another_process(
    name: str, redis_url: str
) -> None:
    """Given a name with other limits, when a thread uses it for the first time, then its own limits
    hold, as those of a task would.
    """
    other = elsewhere(name, Concurrency(1), url=redis_url)
    holder = await soon(other.acquire())
    await asyncio.to_thread(connect, Limiter(f"{name}-known", TOKENS, store=redis_url))

    permit = await acquired(Limiter(name, Concurrency(2), store=redis_url))

    assert (await other.astatus()).limits[0].capacity == 2
    permit.release()
    await holder.arelease()


def test_a_process_of_threads_may_go_back_to_its_former_limits(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a thread that has replaced its own limits, when the next thread goes back to them by
    the portal, then they hold at once: to the server, both are one client.
    """
    connect(Limiter(f"{name}-known", TOKENS, store=redis_url))
    seen = []
    for capacity in (1, 2, 1):
        limiter = Limiter(name, Concurrency(capacity), store=redis_url)
        if seen == [1, 2]:
            monkeypatch.setattr(queue_of(limiter).threads, "no_fast_path_until", inf)
        with limiter:
            seen.append(limiter.status().limits[0].capacity)
    assert seen == [1, 2, 1]


async def test_a_refusal_of_a_new_name_costs_nothing(name: str, redis_url: str) -> None:
    """T8: given a name without room, when a thread uses it for the first time, then the thread is
    refused, and no limit has changed.
    """
    other = elsewhere(name, *LIMITS, url=redis_url)
    holders = [await soon(other.acquire(tokens=10)) for _ in range(2)]
    await asyncio.to_thread(connect, Limiter(f"{name}-known", TOKENS, store=redis_url))
    limiter = Limiter(name, *LIMITS, store=redis_url)

    with pytest.raises(MaxSleepExceededError):
        await acquired(limiter, tokens=5, max_sleep=0.001)

    status = await other.astatus()
    assert (used(status), status.waiting) == ([2, 20], 0)
    for holder in holders:
        await holder.arelease()
    (await acquired(limiter, tokens=5)).release()


# A server that goes away --------------------------------------------------------------------------


async def test_a_thread_whose_first_reply_is_lost_gets_one_permit(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S3, T10, F24: the thread sends the same call again on a new connection, and is charged
    once.
    """
    await asyncio.to_thread(connect, Limiter(f"{name}-known", *LIMITS, store=proxy.url))
    limiter, met = Limiter(name, *LIMITS, store=proxy.url), proxy.met

    proxy.replies.lose(1)
    permit = await acquired(limiter, tokens=10)

    assert (proxy.replies.lost, proxy.met) == (1, met + 1)
    other = elsewhere(name, *LIMITS, url=redis_url)
    assert used(await other.astatus()) == [1, 10]
    await asyncio.to_thread(permit.release)
    await at_rest(other)


async def test_a_first_acquire_of_unknown_outcome_is_undone(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """F24, S7: given a server that goes away with the reply, then the thread has a StoreError. Its
    permit and its tokens are returned when the server is back.
    """
    await asyncio.to_thread(connect, Limiter(f"{name}-known", *LIMITS, store=proxy.url))
    limiter = Limiter(name, *LIMITS, store=proxy.url, retry_for=0)

    proxy.replies.lose(1_000_000)
    with pytest.raises(StoreError, match="cannot be asked"):
        await acquired(limiter, tokens=10)
    assert proxy.replies.lost >= 2  # those to its call and to the copy: the server has granted it
    proxy.replies.lose(0)

    status = await at_rest(elsewhere(name, *LIMITS, url=redis_url))
    assert used(status) == [0, 0]


@pytest.mark.parametrize("limits", [("1/hour",), (Concurrency(1, lease=600.0), "1/hour")])
async def test_an_acquire_of_unknown_outcome_leaves_no_charge(
    name: str, proxy: Proxy, redis_url: str, limits: tuple[Limit | str, ...]
) -> None:
    """F24, S7: given a thread that loses the reply to its call and to its copy, then it gives back
    what the call has taken. So it gets the only token by another way.
    """
    await asyncio.to_thread(connect, Limiter(f"{name}-known", *LIMITS, store=proxy.url))
    limiter = Limiter(name, *limits, store=proxy.url)

    proxy.replies.lose(2)
    permit = await acquired(limiter, max_sleep=0)

    assert proxy.replies.lost == 2
    other = elsewhere(name, *limits, url=redis_url)
    assert used(await other.astatus())[-1] == 1
    await asyncio.to_thread(permit.release)


async def test_a_thread_tries_to_connect_once_for_a_new_name_of_a_server_that_is_away(
    name: str, own_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5: given a server that has closed the threads' connection and is away, when a thread uses a
    new name, then only the portal tries to connect.
    """
    await asyncio.to_thread(connect, Limiter(name, *LIMITS, store=own_proxy.url))
    own_proxy.refuses = True
    own_proxy.reset()
    opened: list[object] = []
    monkeypatch.setattr(fast_path, "connect", lambda server, timeout, queue: queue.put(None))
    with pytest.raises(StoreError):
        await acquired(Limiter(f"{name}-new", *LIMITS, store=own_proxy.url, retry_for=0))
    monkeypatch.setattr(fast_path, "connect", lambda *arguments: opened.append(arguments))

    with pytest.raises(StoreError):
        await acquired(Limiter(f"{name}-newer", *LIMITS, store=own_proxy.url, retry_for=0))

    assert opened == []


async def test_a_first_acquire_asks_a_silent_server_once(
    name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F22, F36: given a server that never answers, when `max_sleep` is over, then the thread has a
    StoreError without another connection. Nothing is held when the server goes on.
    """
    for module in (fast_path, threads):
        monkeypatch.setattr(module, "SILENCE", 0.05)
    monkeypatch.setattr(endpoint, "CONNECT_TIMEOUT", 2 * LONG)
    monkeypatch.setattr(reconnection, "OUTAGE", 2 * LONG)
    await asyncio.to_thread(connect, Limiter(f"{name}-known", *LIMITS, store=proxy.url))
    limiter, met = Limiter(name, *LIMITS, store=proxy.url), proxy.met

    proxy.replies.hold()
    with pytest.raises(StoreError):
        await acquired(limiter, max_sleep=0.05)
    assert proxy.met == met
    proxy.replies.resume()

    await at_rest(limiter)
