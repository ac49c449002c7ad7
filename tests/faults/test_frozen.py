"""Servers and networks that stand still, or are slow: callers get an error in time, and holders
stop relying on their permits in time (S2, F22, F36).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit, Rate, StoreError
from headgate.stores.redis import fast_path, threads
from headgate.stores.redis.session import deadlines
from headgate.stores.redis.transport import endpoint, reconnection
from tests.faults.absence import frozen, opened
from tests.faults.haste import GREETING, OUTAGE, PATIENCE
from tests.faults.proxy import Proxy
from tests.faults.scene import Slack, believed_until, elsewhere, enter, eventually, once_back
from tests.machine import scaled
from tests.processes import Running, running
from tests.servers import Server
from tests.world import LONG, at_rest, long, renew_now, soon, until, used

LEASE = scaled(0.9)
GIVES_UP = OUTAGE + PATIENCE  # a process tries for so long, and its last call takes a reply

Freeze = Callable[[], object]

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(params=["stopped", pytest.param("paused", marks=pytest.mark.proof)])
def freeze(
    request: pytest.FixtureRequest, own_server: Server, own_admin: Redis
) -> Iterator[tuple[Freeze, Freeze]]:
    """How to make the server stand still, and go on: a stopped process, or CLIENT PAUSE."""
    own_admin.ping()
    if request.param == "stopped":
        yield own_server.pause, own_server.resume
    else:
        yield lambda: own_admin.client_pause(60_000, all=False), own_admin.client_unpause


async def test_a_frozen_server_is_an_error_for_callers_and_a_lost_lease_for_holders(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze], slack: Slack
) -> None:
    """S1, S2, F36: acquire raises in time. The permit is lost at its own deadline, and only then
    another caller gets it.
    """
    stop, go_on = freeze
    limit = Concurrency(1, lease=LEASE)
    limiter, other = [elsewhere(name, limit, url=own_server.url) for _ in range(2)]
    await (await other.acquire()).arelease()
    permit = await limiter.acquire()

    stop()
    start = monotonic()
    waiter = asyncio.create_task(enter(other))
    assert await believed_until(permit) <= start + LEASE
    with pytest.raises(StoreError):
        await soon(waiter)
    assert monotonic() - start <= GIVES_UP + slack()
    go_on()

    await once_back(limiter.astatus)
    assert not await soon(permit.arelease())
    successor = await once_back(other.acquire)
    assert successor.fence > permit.fence
    assert not successor.lost
    assert await successor.arelease()
    assert used(await at_rest(limiter)) == [0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a reply may take whatever `max_sleep` says: half a second in the product.

    No other timeout ends within the test.
    """
    for module in (deadlines, fast_path, threads):
        monkeypatch.setattr(module, "SILENCE", 0.05)
    monkeypatch.setattr(endpoint, "CONNECT_TIMEOUT", 2 * LONG)
    monkeypatch.setattr(reconnection, "OUTAGE", 2 * LONG)
    return 0.05


@pytest.mark.parametrize("thread", [False, True])
async def test_a_caller_with_a_short_max_sleep_has_an_error_in_time_from_a_silent_server(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze], impatient: float, thread: bool
) -> None:
    """L5, F36: an acquire ends when `max_sleep` is over, also behind a call in flight. A grant that
    comes later is undone.
    """
    stop, go_on = freeze
    limiter = elsewhere(name, Concurrency(2, lease=60.0), url=own_server.url)
    for _ in range(2):
        (await acquired(limiter, thread, None)).release()
    await at_rest(limiter)

    stop()
    callers = [asyncio.create_task(acquired(limiter, thread, impatient))]
    await asyncio.sleep(0)
    callers.append(asyncio.create_task(acquired(limiter, thread, impatient)))
    assert [
        type(found) for found in await soon(asyncio.gather(*callers, return_exceptions=True))
    ] == [StoreError] * 2
    go_on()

    assert used(await at_rest(limiter)) == [0]


async def acquired(limiter: Limiter, thread: bool, max_sleep: float | None) -> Permit:
    if thread:
        return await asyncio.to_thread(lambda: limiter.acquire_sync(max_sleep=max_sleep))
    return await limiter.acquire(max_sleep=max_sleep)


@pytest.mark.parametrize("thread", [False, True])
async def test_a_caller_with_on_store_error_open_passes_a_silent_server_in_time(
    name: str, own_server: Server, impatient: float, thread: bool
) -> None:
    """F36: `on_store_error` decides what happens when a caller has waited for an answer as long as
    it may.
    """
    limiter = opened(name, own_server, Concurrency(2, lease=60.0))
    for _ in range(2):
        (await acquired(limiter, thread, None)).release()
    await at_rest(limiter)

    with frozen(own_server):
        start = monotonic()
        passed = await soon(acquired(limiter, thread, impatient))
        assert impatient <= passed.waited <= monotonic() - start
        assert not passed.held

    assert used(await at_rest(limiter)) == [0]


@pytest.mark.usefixtures("impatient")
async def test_a_try_waits_for_one_reply(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze]
) -> None:
    """L5, F36: a try without an answer is an error when a reply is overdue, and it waits for no
    other connection.
    """
    stop, go_on = freeze
    limiter = elsewhere(name, Concurrency(2, lease=60.0), url=own_server.url)
    (await limiter.acquire()).release()
    await asyncio.to_thread(lambda: limiter.acquire_sync().release())
    await at_rest(limiter)

    stop()
    tries = limiter.atry_acquire(), asyncio.to_thread(limiter.try_acquire)
    assert [
        type(found) for found in await soon(asyncio.gather(*tries, return_exceptions=True))
    ] == [StoreError] * 2
    go_on()

    assert used(await at_rest(limiter)) == [0]


@pytest.mark.usefixtures("impatient")
async def test_the_fast_path_of_a_thread_asks_a_silent_server_once(name: str, proxy: Proxy) -> None:
    """F22: given a thread's own connection, when no reply comes, then the thread does not try
    another one, which would be silent, too.
    """
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    for _ in range(2):
        await asyncio.to_thread(lambda: limiter.acquire_sync().release())
    proxy.replies.hold()
    met = proxy.met

    with pytest.raises(StoreError):
        await acquired(limiter, True, 0.05)

    assert proxy.met == met
    proxy.resume()
    await at_rest(limiter)


@pytest.mark.usefixtures("impatient")
async def test_a_thread_refused_by_the_fast_path_has_an_error_in_time_from_a_silent_server(
    name: str, proxy: Proxy
) -> None:
    """L5, F36: given a permit that is taken, when the server never answers the call behind the fast
    path, then the thread has an error after `max_sleep`. It leaves the queue.
    """
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=proxy.url),
    )
    for _ in range(2):
        await asyncio.to_thread(lambda: limiter.acquire_sync().release())
    holder = await other.acquire()

    def the_last(reply: bytes) -> bytes:
        if b"$-1" in reply:
            proxy.requests.hold()
        return reply

    proxy.replies.alter = the_last
    with pytest.raises(StoreError):
        await soon(acquired(limiter, True, 0.05))

    proxy.requests.resume()
    assert await holder.arelease()
    assert used(await at_rest(limiter)) == [0]


@pytest.mark.usefixtures("slow_replies")
async def test_a_slow_reply_does_not_count_as_a_wait(name: str, proxy: Proxy) -> None:
    """L5: given a reply that takes longer than `max_sleep`, then a caller that need not wait
    passes.
    """
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    (await limiter.acquire()).release()
    proxy.replies.delay = 0.02
    for thread in (False, True):
        assert await (await acquired(limiter, thread, 0.001)).arelease()


async def test_a_blocked_loop_does_not_count_as_a_silent_server(
    name: str, redis_url: str, impatient: float
) -> None:
    """L5: given a loop that is blocked for longer than `max_sleep`, when it goes on, then its call
    is made and answered.
    """
    limiter = elsewhere(name, Concurrency(1), url=redis_url)
    await (await limiter.acquire()).arelease()
    (await limiter.acquire()).release()
    caller = asyncio.create_task(acquired(limiter, False, impatient))
    await asyncio.sleep(0)
    time.sleep(2 * impatient)  # noqa: ASYNC251 - that is the fault
    assert await (await soon(caller)).arelease()


async def test_a_short_standstill_of_the_server_is_no_error(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze]
) -> None:
    """L5, F36: the pause is shorter than a reply may take, so all callers get their permits,
    once.
    """
    stop, go_on = freeze
    limits = Concurrency(2, lease=60.0), Rate(1000, per=10_000_000, unit="tokens")
    limiter, other = [elsewhere(name, *limits, url=own_server.url) for _ in range(2)]
    await (await limiter.acquire(tokens=1)).arelease()
    await (await other.acquire(tokens=1)).arelease()

    stop()
    callers = [asyncio.create_task(enter(each, tokens=1)) for each in (limiter, other)]
    await asyncio.sleep(0.02)
    go_on()

    for caller in callers:
        assert await (await soon(caller)).arelease()
    assert used(await at_rest(limiter)) == [0, 4]


@pytest.mark.proof
async def test_a_server_that_accepts_and_says_nothing_is_an_error_in_time(
    name: str, proxy: Proxy
) -> None:
    """F22, review R8: the server answers no greeting, so no call waits longer than for one
    connection.
    """
    proxy.hold()
    limiter = Limiter(name, Concurrency(1), store=proxy.url)

    start = monotonic()
    results = await asyncio.gather(
        limiter.acquire(), limiter.astatus(), limiter.atry_acquire(), return_exceptions=True
    )

    assert [type(result) for result in results] == [StoreError] * 3
    assert monotonic() - start < 2 * GREETING
    with pytest.raises(StoreError):
        await asyncio.to_thread(limiter.acquire_sync)

    proxy.resume()
    assert await (await once_back(limiter.acquire)).arelease()


async def test_a_connection_that_falls_silent_is_replaced(
    name: str, proxy: Proxy, slack: Slack
) -> None:
    """F22, L5: established connections fall silent for good, and the next ones work."""
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    await (await soon(limiter.acquire())).arelease()
    proxy.requests.hold()
    start = monotonic()
    caller = asyncio.create_task(enter(limiter))
    silent = set(proxy.connections)

    await eventually(lambda: not silent & proxy.connections or proxy.met > len(silent))
    proxy.requests.resume()

    assert await (await soon(caller)).arelease()
    assert monotonic() - start <= GIVES_UP + slack()
    await at_rest(limiter)


@pytest.mark.proof
async def test_a_late_reply_to_a_renewal_does_not_prolong_the_lease(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S2, TL1: a lease counts from the sending of its renewal, however long the reply takes."""
    limit = Concurrency(1, lease=LEASE)
    limiter, other = Limiter(name, limit, store=proxy.url), elsewhere(name, limit, url=redis_url)
    permit = await soon(limiter.acquire())
    granted = monotonic()

    proxy.replies.hold()
    renewals = len(proxy.requests.seen)
    renew_now(permit.home)
    await eventually(lambda: len(proxy.requests.seen) > renewals)
    waiter, believed = asyncio.create_task(enter(other)), []
    waiter.add_done_callback(lambda _: believed.append(not permit.lost))
    assert await believed_until(permit) <= granted + LEASE
    proxy.resume()

    assert await (await soon(waiter)).arelease()
    assert believed == [
        False
    ]  # the server knows of the renewal, and keeps the permit a little longer than its holder
    assert permit.lost  # the late replies have changed nothing
    permit.release()
    await until(lambda status: used(status) == [0], other)


@pytest.mark.proof
async def test_holders_on_slow_networks_never_exceed_the_capacity(
    name: str, redis_url: str, redis_server: Server
) -> None:
    """S1, S2, S5 over processes with slow and silent networks: never more holders rely on a permit
    than the capacity allows.

    Two processes have a network each. Its replies take up to longer than a lease, and stop for a
    while.
    """
    limit = Concurrency(2, lease=0.12)
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(Proxy(redis_server.port)) for _ in range(2)]
        processes = [
            stack.enter_context(running("believer", network.url, name, repr(limit), "32"))
            for network in networks
        ]
        weather = asyncio.create_task(changing(networks))
        async with asyncio.timeout(4 * long()):
            said = list(itertools.chain(*[await all_said(process) for process in processes]))
        weather.cancel()

    beliefs = [tuple(map(float, line.split())) for line in said if line != "StoreError"]
    assert len(beliefs) >= 32, said
    steps = sorted([(start, 1) for start, _, _ in beliefs] + [(end, -1) for _, end, _ in beliefs])
    together = list(itertools.accumulate(step for _, step in steps))
    assert max(together) <= limit.capacity
    assert len({fence for _, _, fence in beliefs}) == len(beliefs)
    await until(lambda status: used(status) == [0], Limiter(name, limit, store=redis_url))


async def changing(networks: list[Proxy]) -> None:
    """Fine, slow, slower than a lease, and no reply at all, in turn and never the same for both."""
    for number in itertools.count():
        for network, kind in zip(networks, (number % 4, (number + 2) % 4), strict=True):
            network.replies.delay = (0.0, 0.04, 0.1, 0.0)[kind]
            network.requests.delay = (0.0, 0.03, 0.1, 0.0)[kind]
            (network.hold if kind == 3 else network.resume)()
        await asyncio.sleep(0.09)


async def all_said(process: Running) -> list[str]:
    """The lines of the process, until it ends."""
    lines = []
    while (line := await process.said()) != "<ended>":
        lines.append(line)
    return lines
