"""Servers and networks that stand still, or are slow: callers are told in time, holders stop
believing in time (S2, F22, F36).
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
from headgate.stores.redis import fast_path, queue
from headgate.stores.redis.session import reply_timeouts
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
GIVES_UP = OUTAGE + PATIENCE  # it is looked for so long, and the last call takes a reply

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


async def test_a_frozen_server_is_an_error_for_callers_and_the_end_for_holders(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze], slack: Slack
) -> None:
    """S1, S2, F36: acquire raises in time; the permit is lost at its own deadline; only then has
    somebody else the place.
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

    Nothing else is over in time.
    """
    for module in (queue, reply_timeouts, fast_path):
        monkeypatch.setattr(module, "SILENCE", 0.05)
    monkeypatch.setattr(endpoint, "CONNECT_TIMEOUT", 2 * LONG)
    monkeypatch.setattr(reconnection, "OUTAGE", 2 * LONG)
    return 0.05


@pytest.mark.parametrize("thread", [False, True])
async def test_whoever_will_not_wait_for_long_learns_in_time_that_nobody_answers(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze], impatient: float, thread: bool
) -> None:
    """L5, F36: `max_sleep` is over when it is over, also behind a call on its way; what was granted
    is undone.
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
async def test_who_need_not_be_limited_passes_a_silent_server_in_time(
    name: str, own_server: Server, impatient: float, thread: bool
) -> None:
    """F36: `on_store_error` says what becomes of who has waited for an answer as long as it may."""
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
    """L5, F36: a try that nobody answers is an error when a reply is overdue, and waits for no
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
async def test_the_shortcut_asks_a_silent_server_once(name: str, proxy: Proxy) -> None:
    """F22: given a thread's own connection, when nothing comes back, then another one would only be
    silent, too.
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
async def test_who_was_turned_away_by_the_quick_way_in_still_learns_in_time(
    name: str, proxy: Proxy
) -> None:
    """L5, F36: given a permit that is taken, when the quick call says so and the whole one is never
    answered, then that is an error after `max_sleep`, and nobody is left in the queue.
    """
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=proxy.url),
    )
    for _ in range(2):
        await (await limiter.acquire()).arelease()
    holder = await other.acquire()

    def the_last(reply: bytes) -> bytes:
        if b"$-1" in reply:
            proxy.requests.hold()
        return reply

    proxy.replies.alter = the_last
    with pytest.raises(StoreError):
        await soon(acquired(limiter, False, 0.05))

    proxy.requests.resume()
    assert await holder.arelease()
    assert used(await at_rest(limiter)) == [0]


async def test_replies_that_are_slow_are_no_wait(name: str, proxy: Proxy) -> None:
    """L5: given a reply that takes longer than `max_sleep`, then who need not wait has passed."""
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    (await limiter.acquire()).release()
    proxy.replies.delay = 0.02
    for thread in (False, True):
        assert await (await acquired(limiter, thread, 0.001)).arelease()


async def test_a_loop_that_was_blocked_says_nothing_of_the_server(
    name: str, redis_url: str, impatient: float
) -> None:
    """L5: given a loop that comes to nothing for longer than `max_sleep`, when it goes on, then its
    call is made and answered.
    """
    limiter = elsewhere(name, Concurrency(1), url=redis_url)
    await (await limiter.acquire()).arelease()
    (await limiter.acquire()).release()
    caller = asyncio.create_task(acquired(limiter, False, impatient))
    await asyncio.sleep(0)
    time.sleep(2 * impatient)  # noqa: ASYNC251 - that is the fault
    assert await (await soon(caller)).arelease()


async def test_a_short_pause_goes_by_unnoticed(
    name: str, own_server: Server, freeze: tuple[Freeze, Freeze]
) -> None:
    """L5, F36: shorter than a reply may take: all get what they asked for, once."""
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


async def test_a_server_that_accepts_and_says_nothing_is_an_error_in_time(
    name: str, proxy: Proxy
) -> None:
    """F22, review R8: no greeting is ever answered; nobody waits longer than for one connection,
    whatever they ask.
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


async def test_a_black_hole_in_the_midst_of_work_is_left_behind(
    name: str, proxy: Proxy, slack: Slack
) -> None:
    """F22, L5: established connections fall silent for good; the next ones work."""
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
async def test_renewals_that_come_late_are_not_believed(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S2, TL1: a lease counts from the sending of its renewal, however long the reply was on its
    way.
    """
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
    ]  # the server knows of the renewal, and keeps the place a little longer than we believe
    assert permit.lost  # the late replies have changed nothing
    permit.release()
    await until(lambda status: used(status) == [0], other)


@pytest.mark.proof
async def test_beliefs_never_overlap_beyond_the_capacity(
    name: str, redis_url: str, redis_server: Server
) -> None:
    """S1, S2, S5 over processes with slow and silent networks: who believes in a permit is never
    one too many.

    Two processes, each with a network of its own, whose replies take from nothing to longer than a
    lease, and stop for a while.
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
    """Fine, slow, slower than a lease, and nothing at all, in turn and never the same for both."""
    for number in itertools.count():
        for network, kind in zip(networks, (number % 4, (number + 2) % 4), strict=True):
            network.replies.delay = (0.0, 0.04, 0.1, 0.0)[kind]
            network.requests.delay = (0.0, 0.03, 0.1, 0.0)[kind]
            (network.hold if kind == 3 else network.resume)()
        await asyncio.sleep(0.09)


async def all_said(process: Running) -> list[str]:
    """Its lines, until it ends."""
    lines = []
    while (line := await process.said()) != "<ended>":
        lines.append(line)
    return lines
