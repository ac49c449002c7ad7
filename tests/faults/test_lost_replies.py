"""Calls that the server has run, as only the server knows: each takes effect once, and no permit is
lost by them (promise 4).

F2, F21, F23, F24, F25: replies lost, cut short, late or another's; calls that arrive twice or after
their time.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, MaxSleepExceededError, Permit, Rate, StoreError, Window
from headgate.stores.redis.session import next_call, polls, traffic
from tests.faults.haste import SESSION_LIFE
from tests.faults.proxy import Proxy, Way
from tests.faults.scene import believed_until, content_of, elsewhere, enter, eventually, once_back
from tests.world import at_rest, soon, until, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")

pytestmark = pytest.mark.usefixtures("hurried")


async def ready(limiter: Limiter) -> Limiter:
    """Connected, and the scripts are known there."""
    await soon(limiter.astatus())
    await (await soon(limiter.acquire())).arelease()
    return limiter


async def under_way(way: Way) -> None:
    """Go on when the next piece has come to be sent."""
    seen = len(way.seen)
    await eventually(lambda: len(way.seen) > seen)


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_acquire_whose_reply_is_lost_is_granted_and_charged_once(
    name: str, proxy: Proxy, redis_url: str, lost: int
) -> None:
    """S3, T10, F24: given a free permit, when the reply is lost, then the caller has one permit,
    and the server has counted one.
    """
    limits = Concurrency(3), TOKENS
    limiter = await ready(Limiter(name, *limits, store=proxy.url))

    proxy.replies.lose(lost)
    permit = await soon(limiter.acquire(tokens=10))

    assert proxy.replies.lost == lost
    assert used(await elsewhere(name, *limits, url=redis_url).astatus()) == [1, 10]
    assert await permit.arelease()
    assert used(await limiter.astatus()) == [0, 10]


async def test_a_release_whose_reply_is_lost_frees_one_permit(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S4, T10, F24: the process sends the release twice, and a caller that came in between keeps
    the permit.
    """
    limiter = await ready(Limiter(name, Concurrency(1), store=proxy.url))
    other = elsewhere(name, Concurrency(1), url=redis_url)
    permit = await limiter.acquire()
    waiter = asyncio.create_task(enter(other))
    await waiting(other, 1)

    proxy.replies.lose(1)
    proxy.rest.hold()  # it cannot connect again yet
    releasing = asyncio.create_task(permit.arelease())
    successor = await soon(waiter)
    proxy.rest.resume()

    assert await soon(releasing)
    assert used(await other.astatus()) == [1]
    assert await successor.arelease()


@pytest.mark.proof
async def test_a_release_during_an_outage_arrives_later(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S7, L5, review f5: `arelease` raises StoreError while the server is away. The permit is free
    soon after the server is back.
    """
    limiter = await ready(Limiter(name, Concurrency(1), store=proxy.url))
    permit = await limiter.acquire()

    proxy.refuses = True
    proxy.reset()
    with pytest.raises(StoreError):
        await soon(permit.arelease())
    proxy.refuses = False

    await at_rest(elsewhere(name, Concurrency(1), url=redis_url))


@pytest.mark.proof
@pytest.mark.parametrize("actual", [60, 2], ids=["more", "less"])
async def test_a_settlement_whose_replies_are_lost_takes_effect_once(
    name: str, proxy: Proxy, redis_url: str, actual: int
) -> None:
    """T10, F24, review R2: all replies are lost until the process gives up the call. When the
    server is back, the call took effect once.
    """
    limiter = await ready(Limiter(name, Concurrency(1), TOKENS, store=proxy.url))
    permit = await limiter.acquire(tokens=10)

    proxy.replies.lose(1_000_000)
    permit.settle(tokens=actual)
    await eventually(lambda: proxy.replies.lost >= 7)  # given up, and sent again, more than once
    proxy.replies.lose(0)

    assert used(await once_back(limiter.astatus)) == [
        1,
        actual,
    ]  # asked behind it, in the same session
    assert used(await elsewhere(name, Concurrency(1), TOKENS, url=redis_url).astatus()) == [
        1,
        actual,
    ]
    assert await permit.arelease()


@pytest.mark.proof
@pytest.mark.parametrize(
    "limit", [Rate(100, per=AGES), Window(100, per=AGES)], ids=["rate", "window"]
)
async def test_a_reservation_is_given_back_once(
    name: str, proxy: Proxy, redis_url: str, limit: Rate | Window
) -> None:
    """T5, T10, F2, review R2: the caller is cancelled while its grant is on the way back. Then the
    replies to the cancel are lost.
    """
    limiter = await ready(Limiter(name, limit, store=proxy.url))
    await limiter.acquire(49)

    proxy.replies.hold()
    caller = asyncio.create_task(enter(limiter, 20))
    await under_way(proxy.replies)
    caller.cancel()
    await asyncio.wait([caller])
    proxy.replies.lose(1_000_000)
    proxy.replies.resume()  # the grant arrives, and later replies do not
    await eventually(lambda: proxy.replies.lost >= 7)
    assert any(b"cancel" in piece for piece in proxy.requests.seen)
    proxy.replies.lose(0)

    assert used(await once_back(limiter.astatus)) == [50]
    assert used(await elsewhere(name, limit, url=redis_url).astatus()) == [50]


async def test_a_call_of_unknown_outcome_raises_and_is_undone(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """F24, S7: the caller has a StoreError. A grant that it does not know of is returned once the
    server answers, tokens too.
    """
    limits = Concurrency(2), TOKENS
    limiter = await ready(Limiter(name, *limits, store=proxy.url, retry_for=1))
    other = elsewhere(name, *limits, url=redis_url)

    proxy.replies.lose(1_000_000)
    with pytest.raises(StoreError, match="cannot be asked"):
        await soon(limiter.acquire(tokens=10))
    assert used(await other.astatus()) == [1, 10]
    proxy.replies.lose(0)

    await until(lambda status: used(status) == [0, 0], other)  # no caller has to ask for it


@pytest.mark.proof
async def test_waiters_of_unknown_outcome_leave_the_queue(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """F24, L6: callers stood in the queue, or had just asked, when the server was lost. Once it is
    back, only others stand there.
    """
    limiter = await ready(Limiter(name, Concurrency(1), store=proxy.url))
    other = elsewhere(name, Concurrency(1), url=redis_url)
    holder = await other.acquire()
    queued = asyncio.create_task(enter(limiter))
    await waiting(other, 1)

    proxy.replies.lose(1_000_000)
    just_asked = asyncio.create_task(enter(limiter))
    await asyncio.wait([queued, just_asked])
    assert isinstance(queued.exception(), StoreError)
    assert isinstance(just_asked.exception(), StoreError)
    proxy.replies.lose(0)

    later = asyncio.create_task(enter(limiter))  # of the same session, which lives
    await waiting(other, 1)
    await holder.arelease()
    assert await (await soon(later)).arelease()
    await at_rest(other)


@pytest.mark.proof
async def test_waiters_of_a_lost_server_leave_its_queue_when_it_is_back(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3, L5, S9, F24, review R9: one call cannot cancel so many waiters. A caller that asks when
    the server is back does not stand behind them.

    S7: the server may grant one of them before it learns that they have left. That permit is given
    back.
    """
    limit = Concurrency(1, lease=30.0)
    for module in (next_call, traffic):
        monkeypatch.setattr(module, "MOST", 100)
    monkeypatch.setattr(
        polls, "HEARTBEAT", 0.6 * SESSION_LIFE
    )  # so that heartbeats alone would take too long to clear the queue
    limiter = await ready(Limiter(name, limit, store=proxy.url))
    other = elsewhere(name, limit, url=redis_url)
    holder = await other.acquire()
    many_waiters = [asyncio.create_task(enter(limiter)) for _ in range(3000)]
    await waiting(other, len(many_waiters))

    proxy.refuses = True
    proxy.reset()
    errors = await asyncio.gather(*many_waiters, return_exceptions=True)
    assert {type(error) for error in errors} == {StoreError}
    proxy.refuses = False
    later = asyncio.create_task(once_back(lambda: enter(limiter)))
    await holder.arelease()

    assert await (await soon(later)).arelease()
    await at_rest(other)


async def listening(name: str, proxy: Proxy) -> None:
    """Let a caller wait on this connection under another name, so that the process is
    subscribed.
    """
    limiter = await ready(Limiter(f"{name}-ears", Concurrency(1), store=proxy.url))
    async with limiter:
        waiter = asyncio.create_task(enter(limiter))
        await waiting(limiter, 1)
        await eventually(lambda: proxy.notifications.seen)
        waiter.cancel()
        await waiting(limiter, 0)
    await at_rest(limiter)


@pytest.mark.parametrize("how", ["late", "lost"])
async def test_a_late_reply_to_wait_takes_no_permit_from_a_caller_that_a_notification_granted(
    name: str, proxy: Proxy, redis_url: str, how: str
) -> None:
    """S1, S2, review R1: the notification is faster than the reply. The caller that entered stays
    inside, alone.
    """
    await listening(name, proxy)
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()

    if how == "late":
        proxy.replies.hold()
    else:
        proxy.replies.lose(1)
        proxy.rest.hold()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    await holder.arelease()
    permit = await soon(waiter)
    proxy.resume()
    await soon(limiter.astatus())  # answered behind the reply of the acquire

    assert not permit.lost
    assert used(await other.astatus()) == [1]
    assert not await other.atry_acquire()
    assert await permit.arelease()


async def test_a_permit_notified_before_the_first_reply_is_valid_for_one_lease(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S2, review R1: the process does not know the server's clock yet, and still the permit is lost
    when its lease ends.
    """
    lease = 3.0  # the holder keeps its permit until the other one waits, though the machine stalls
    await listening(name, proxy)
    other = elsewhere(name, Concurrency(1, lease=lease), url=redis_url)
    holder = await other.acquire()

    proxy.replies.hold()
    sent = monotonic()
    waiter = asyncio.create_task(enter(Limiter(name, Concurrency(1, lease=lease), store=proxy.url)))
    await waiting(other, 1)
    await holder.arelease()
    permit = await soon(waiter)
    assert not permit.lost

    assert await believed_until(permit) - sent <= lease + 0.1
    proxy.resume()
    await permit.arelease()  # the server counts from the grant, and may hold it for a little longer
    await at_rest(other)


async def test_a_reply_that_is_cut_short_is_no_reply(name: str, proxy: Proxy) -> None:
    """F21, F23: half of a reply arrives, then an RST. The process sends the call again, and has a
    whole answer.
    """
    limiter = await ready(Limiter(name, Concurrency(3), TOKENS, store=proxy.url))
    for stump in (1, 9, 60):
        proxy.replies.lose(1, stump)

        permit = await soon(limiter.acquire(tokens=10))

        assert await permit.arelease()
    assert used(await limiter.astatus()) == [0, 30]


async def test_replies_that_come_byte_by_byte_are_read(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """F23: on both connections, and notifications too."""
    proxy.replies.single_bytes = proxy.notifications.single_bytes = proxy.rest.single_bytes = True
    limiter = await ready(Limiter(name, Concurrency(1), TOKENS, store=proxy.url))
    other = elsewhere(name, Concurrency(1), TOKENS, url=redis_url)

    async with other:
        waiters = [asyncio.create_task(enter(limiter, tokens=1)) for _ in range(3)]
        await waiting(other, 3)
    for waiter in waiters:
        assert await (await soon(waiter)).arelease()

    assert used(await limiter.astatus()) == [0, 3]


async def test_calls_that_arrive_again_change_nothing(
    name: str, proxy: Proxy, redis_url: str, admin: Redis
) -> None:
    """S3, S4, T10, F25: after a whole scenario every call of it arrives again: in order, backwards,
    and each one twice.
    """
    await elsewhere(f"{name}-before", TOKENS, url=redis_url).acquire()  # the library is loaded
    limits = Concurrency(2), TOKENS, Window(500, per=AGES, unit="bytes")
    limiter = await ready(Limiter(name, *limits, store=proxy.url))
    first, second = [await limiter.acquire(tokens=10, bytes=7) for _ in range(2)]
    stayed, gone = [asyncio.create_task(enter(limiter, tokens=3)) for _ in range(2)]
    await waiting(limiter, 2)
    gone.cancel()
    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(tokens=3, max_sleep=0.001)
    first.settle(tokens=15)
    await first.arelease()
    third = await soon(stayed)
    await limiter.astatus()
    calls = [piece for piece in proxy.requests.seen if b"FCALL" in piece and b"LOAD" not in piece]
    other = elsewhere(name, *limits, url=redis_url)
    status = await other.astatus()
    assert used(status) == [2, 28, 14]
    before = content_of(admin, name)

    replies = await sent_again(proxy.port, [*calls, *reversed(calls), *calls, *calls])

    assert len(replies) == 4 * len(calls)
    assert content_of(admin, name) == before
    assert await other.astatus() == status
    for permit in (second, third):
        assert await permit.arelease()
    assert used(await limiter.astatus()) == [0, 28, 14]


async def sent_again(port: int, calls: list[bytes]) -> list[bytes]:
    """Each call by itself, on a connection of its own kind."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    replies = []
    for call in calls:
        writer.write(call)
        replies.append(await soon(reader.read(1 << 20)))
    writer.close()
    return replies


async def test_a_reply_that_belongs_to_another_call_is_an_error(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """Fact 3: a reply names its call.

    A reply that names another call is ignored, and its connection is given up.
    """
    limiter = await ready(Limiter(name, Concurrency(2), TOKENS, store=proxy.url))
    met = proxy.met

    proxy.replies.alter = lambda reply: reply.replace(
        b" ok ", b"1 ok ", 1
    )  # the number of the call
    with pytest.raises(StoreError, match="another call"):
        await soon(limiter.acquire(tokens=10))
    proxy.replies.alter = None

    await until(
        lambda status: used(status) == [0, 0],
        elsewhere(name, Concurrency(2), TOKENS, url=redis_url),
    )
    assert proxy.met > met
    assert await (await soon(limiter.acquire(tokens=10))).arelease()


@pytest.mark.parametrize("on_the_way", ["requests", "replies"])
async def test_a_caller_that_gives_up_while_its_call_is_in_flight_holds_nothing(
    name: str, proxy: Proxy, on_the_way: str
) -> None:
    """L4, S7, F2: the cancelled caller returns at once. A grant of the server that comes later is
    given back soon after.
    """
    limiter = await ready(Limiter(name, Concurrency(1), TOKENS, store=proxy.url))
    way = getattr(proxy, on_the_way)
    way.hold()
    caller = asyncio.create_task(enter(limiter, tokens=10))
    await under_way(way)

    caller.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert caller.done()
    way.resume()

    assert used(await at_rest(limiter)) == [0, 0]


def visit(limiter: Limiter) -> None:
    """Enter and leave, and wait until no call is in flight."""
    with limiter:
        pass
    limiter.status()


async def test_a_thread_whose_reply_is_lost_gets_one_permit(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S3, T10, F24 for blocking callers: they ask by a connection of their own first, and then by
    the portal.
    """
    limits = Concurrency(3), TOKENS
    limiter = Limiter(name, *limits, store=proxy.url)
    for _ in range(2):  # by the portal, then directly
        await asyncio.to_thread(visit, limiter)

    proxy.replies.lose(1)
    permit: Permit = await asyncio.to_thread(limiter.acquire_sync, tokens=10)

    assert proxy.replies.lost == 1
    other = elsewhere(name, *limits, url=redis_url)
    await until(lambda status: used(status) == [1, 10], other)
    await asyncio.to_thread(permit.release)
    await at_rest(other)
