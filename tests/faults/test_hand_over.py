"""Local hand-off: inside of a process the caller that leaves gives its permit to the next waiter,
and the server learns it later.

S1, S3, S6, S7: no caller is passed over, no permit is held twice, and none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate
from headgate.internals import queue_of
from headgate.stores.redis.session import polls
from headgate.stores.redis.session.local_handoff import LocalHandoff
from tests.faults.proxy import Proxy
from tests.faults.scene import elsewhere, eventually
from tests.servers import Server
from tests.world import soon, until, waiting

ONE = Concurrency(1)


class Callers:
    """Tasks that enter a limiter, record it, and stay until the test calls `go`."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.before_leaving: dict[
            int, Callable[[], object]
        ] = {}  # called by a task in the turn in which it leaves
        self.after_leaving: dict[int, Callable[[], object]] = {}
        self._may_leave: dict[int, asyncio.Event] = {}

    async def _enter(self, limiter: Limiter, number: int) -> None:
        async with limiter:
            self.inside.append(number)
            await self._may_leave[number].wait()
            self.before_leaving.get(number, nothing)()
        self.after_leaving.get(number, nothing)()

    def start(self, limiter: Limiter, *numbers: int) -> None:
        for number in numbers:
            self._may_leave[number] = asyncio.Event()
            self.tasks[number] = asyncio.create_task(self._enter(limiter, number))

    async def come(self, limiter: Limiter, *numbers: int) -> None:
        """Start all of them in one call, and wait until the server has answered it."""
        self.start(limiter, *numbers)
        await asyncio.sleep(0)
        await limiter.astatus()
        await limiter.astatus()

    def go(self, number: int) -> None:
        self._may_leave[number].set()

    async def inside_are(self, *numbers: int) -> None:
        await eventually(lambda: self.inside == list(numbers))

    async def all_gone(self) -> None:
        for may_leave in self._may_leave.values():
            may_leave.set()
        await soon(asyncio.gather(*self.tasks.values(), return_exceptions=True))


@pytest.fixture
def callers() -> Callers:
    return Callers()


async def test_a_caller_that_leaves_hands_its_permit_to_the_next_waiter_before_the_server_replies(
    name: str, proxy: Proxy, callers: Callers
) -> None:
    """S6: given three callers that came together, when the replies are held, then each enters as
    the one before it leaves, in order.
    """
    limiter = Limiter(name, ONE, store=proxy.url)
    await callers.come(limiter, 1, 2, 3)
    proxy.replies.hold()

    callers.go(1)
    await callers.inside_are(1, 2)
    callers.go(2)
    await callers.inside_are(1, 2, 3)

    proxy.replies.resume()
    await callers.all_gone()
    await at_rest(limiter)


async def test_the_server_counts_holders_and_waiters_during_local_hand_offs(
    name: str, redis_url: str, callers: Callers
) -> None:
    """S1, S7: another process sees one held permit all the time, and is granted none."""
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, *range(20))

    for number in range(19):
        callers.go(number)
        await callers.inside_are(*range(number + 2))
        assert not await other.atry_acquire()

    status = await until(lambda status: status.waiting == 0, queue_of(other))
    assert [limit.used for limit in status.limits] == [1]
    await callers.all_gone()
    await at_rest(other)


async def test_the_server_learns_of_a_local_hand_off_without_a_heartbeat(
    name: str, redis_url: str, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: given no renewal and no heartbeat for an hour, a next waiter still leaves the queue of
    the server.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", 3600.0)
    lasting = Concurrency(1, lease=3 * 3600.0)
    limiter, other = (
        elsewhere(name, lasting, url=redis_url),
        elsewhere(name, lasting, url=redis_url),
    )
    await callers.come(limiter, 1, 2, 3)

    for number in (1, 2):
        callers.go(number)
        await callers.inside_are(*range(1, number + 2))
        await until(lambda status, left=2 - number: status.waiting == left, queue_of(other))

    await callers.all_gone()
    await at_rest(other)


async def test_a_local_hand_off_passes_over_no_waiter_of_another_process(
    name: str, redis_url: str, callers: Callers
) -> None:
    """S6: given two callers here, one elsewhere, and one here behind it, then the second caller
    takes over, and the caller elsewhere is next.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1, 2)
    await callers.come(other, 3)
    await callers.come(limiter, 4)

    for number in (1, 2, 3, 4):
        await callers.inside_are(*range(1, number + 1))
        callers.go(number)

    await callers.all_gone()
    await at_rest(other)


async def test_a_waiter_behind_another_process_takes_over_once_it_is_first(
    name: str, proxy: Proxy, redis_url: str, callers: Callers
) -> None:
    """Given two callers here behind two elsewhere, when the first of them is inside and the replies
    are held, then the second takes over.
    """
    limiter, other = Limiter(name, ONE, store=proxy.url), elsewhere(name, ONE, url=redis_url)
    await callers.come(other, 1, 2)
    await callers.come(limiter, 3, 4)
    for number in (1, 2):
        callers.go(number)
    await callers.inside_are(1, 2, 3)
    proxy.replies.hold()

    callers.go(3)
    await callers.inside_are(1, 2, 3, 4)

    proxy.replies.resume()
    await callers.all_gone()
    await at_rest(other)


async def test_callers_that_come_one_by_one_take_over_in_order(
    name: str, proxy: Proxy, callers: Callers
) -> None:
    """Given callers that come one by one while the first is inside, when the replies are held, then
    they take over in order.
    """
    limiter = Limiter(name, ONE, store=proxy.url)
    for number in (1, 2, 3):
        await callers.come(limiter, number)
    proxy.replies.hold()

    callers.go(1)
    await callers.inside_are(1, 2)
    callers.go(2)
    await callers.inside_are(1, 2, 3)

    proxy.replies.resume()
    await callers.all_gone()
    await at_rest(limiter)


@pytest.mark.parametrize("when", ["before", "just before", "just after", "after"])
async def test_a_cancelled_next_waiter_leaves_the_permit_to_the_one_behind_it(
    name: str, redis_url: str, callers: Callers, when: str
) -> None:
    """S7, L4: given three callers, when the second is cancelled around the moment at which the
    first leaves, then the third enters.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1, 2, 3)

    cancel = callers.tasks[2].cancel
    callers.before_leaving[1] = cancel if when == "just before" else nothing
    callers.after_leaving[1] = cancel if when == "just after" else nothing
    if when == "before":
        cancel()
    callers.go(1)
    if when == "after":
        await callers.inside_are(1, 2)
        cancel()

    await callers.inside_are(*((1, 2, 3) if when == "after" else (1, 3)))
    await callers.all_gone()
    await at_rest(limiter)


async def test_a_permit_granted_to_a_waiter_that_took_over_goes_to_the_next_waiter(
    name: str, redis_url: str, callers: Callers
) -> None:
    """S1, S3, S7: given two permits, one here and one elsewhere, that are released in the same
    moment, then both next waiters are granted once.
    """
    two = Concurrency(2)
    limiter, other = elsewhere(name, two, url=redis_url), elsewhere(name, two, url=redis_url)
    permit = await other.acquire()
    await callers.come(limiter, 1, 2, 3, 4)

    permit.release()  # the server grants it to 2
    callers.go(1)  # and this process hands its own to 2
    await callers.inside_are(1, 2, 3)

    assert not await other.atry_acquire()
    await callers.all_gone()
    await at_rest(other)


async def test_a_caller_that_sees_its_fence_gets_its_permit_from_the_server(
    name: str, redis_url: str, callers: Callers
) -> None:
    """S5: a permit from a local hand-off has no new fence, so only callers get it that never see a
    fence.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1)
    acquiring = [asyncio.ensure_future(acquire(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    await callers.all_gone()
    fences = [await soon(each) for each in acquiring]

    assert fences == sorted(set(fences))
    await at_rest(limiter)


@pytest.mark.parametrize(
    "changes",
    [(Concurrency(1),), (Concurrency(2), Rate(1, per=3600, initial=0))],
    ids=["lowered", "a rate is added"],
)
async def test_after_a_change_of_the_limits_no_permit_is_handed_over(
    name: str, proxy: Proxy, callers: Callers, changes: tuple[Concurrency | Rate, ...]
) -> None:
    """S1: given two callers inside and others that wait, when the limits change, then a caller that
    leaves hands over only what the new limits allow.
    """
    limiter = Limiter(name, Concurrency(2), store=proxy.url)
    await callers.come(limiter, 1, 2, 3, 4)
    await limiter.aupdate(*changes)

    callers.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert callers.inside == [1, 2]
    await limiter.aupdate(Concurrency(2))
    await callers.inside_are(1, 2, 3)
    await callers.all_gone()
    await at_rest(limiter)


async def test_no_permit_is_handed_over_when_the_limits_change_there_and_back(
    name: str, redis_url: str, callers: Callers
) -> None:
    """S1: given one permit, then three by another process, and one again by this process, then a
    caller that leaves hands over no permit too many.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1, 2, 3, 4)
    await other.aupdate(Concurrency(3))
    await callers.inside_are(1, 2, 3)
    await limiter.aupdate(ONE)

    callers.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert callers.inside == [1, 2, 3]
    await callers.all_gone()
    await at_rest(other)


async def test_permits_are_handed_over_under_limits_of_another_process(
    name: str, proxy: Proxy, redis_url: str, callers: Callers
) -> None:
    """Given limits that another process has set, when the server has granted under them and the
    replies are held, then the next waiter takes over.
    """
    limiter, other = (
        Limiter(name, Concurrency(2), store=proxy.url),
        elsewhere(name, Concurrency(2), url=redis_url),
    )
    await limiter.astatus()
    await other.aupdate(ONE)
    await limiter.astatus()
    await callers.come(limiter, 1, 2)
    proxy.replies.hold()

    callers.go(1)
    await callers.inside_are(1, 2)

    proxy.replies.resume()
    await callers.all_gone()
    await at_rest(other)


async def test_no_waiter_takes_over_in_a_pause(name: str, redis_url: str, callers: Callers) -> None:
    """Given two waiters, when the limiter is paused and the caller inside leaves, then the waiters
    enter after the pause, in order.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1, 2, 3)
    began = monotonic()
    await limiter.apause(0.2)

    callers.go(1)
    status = await until(lambda status: not status.limits[0].used, other)
    assert (callers.inside, status.waiting) == ([1], 2)

    await callers.inside_are(1, 2)
    assert monotonic() - began >= 0.2
    await callers.all_gone()
    await at_rest(other)


@pytest.mark.parametrize(
    "doubt", ["the lease is lost", "the lease is nearly over", "no reply has come for long"]
)
async def test_no_permit_is_handed_over_when_the_lease_or_the_queue_is_in_doubt(
    name: str, redis_url: str, callers: Callers, monkeypatch: pytest.MonkeyPatch, doubt: str
) -> None:
    """S2, S6: given a lease or a place in the queue that is not certain any more, then a caller
    that leaves hands nothing over.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    await callers.come(limiter, 1, 2)
    (permit,) = queue_of(limiter)._inside._entered[callers.tasks[1]]
    assert permit.home.machine.handoff.next_waiter(permit, monotonic()), "it would be handed over"
    if doubt == "no reply has come for long":
        permit.home.machine.numbering.last_reply.asked_at -= 2 * polls.HEARTBEAT
    else:
        permit.certain_until = 0.0 if doubt == "the lease is lost" else monotonic() + ONE.lease / 8
    handed: list[bool] = []
    hand_over = LocalHandoff.hand_over
    monkeypatch.setattr(
        LocalHandoff,
        "hand_over",
        lambda its, permit, now: handed.append(hand_over(its, permit, now)) or handed[-1],
    )

    callers.go(1)
    await callers.inside_are(1, 2)

    assert handed == [False]
    await callers.all_gone()
    await at_rest(limiter)


async def test_a_notification_from_before_a_lower_capacity_allows_no_hand_over(
    name: str, proxy: Proxy, redis_url: str, callers: Callers
) -> None:
    """S1: given a grant from before the capacity was lowered whose notification comes after that,
    then a caller that leaves hands nothing over.
    """
    limiter, other = (
        Limiter(name, Concurrency(3), store=proxy.url),
        elsewhere(name, Concurrency(3), url=redis_url),
    )
    permit = await other.acquire()
    await callers.come(limiter, 1, 2, 3, 4, 5)
    proxy.notifications.hold()
    await permit.arelease()
    await limiter.aupdate(Concurrency(1))
    proxy.notifications.resume()
    await callers.inside_are(1, 2, 3)

    callers.go(1)
    callers.go(2)
    await until(lambda status: status.limits[0].used == 1, other)

    assert callers.inside == [1, 2, 3]
    callers.go(3)
    await callers.inside_are(1, 2, 3, 4)
    await callers.all_gone()
    await at_rest(limiter)


async def test_a_caller_that_was_cancelled_before_the_reply_is_no_next_waiter(
    name: str, proxy: Proxy, redis_url: str, admin: Redis, callers: Callers
) -> None:
    """S7: given three callers of one call whose reply is held, and a notification that grants the
    first. When the second is cancelled and the first leaves, the third enters.
    """
    limiter, other = Limiter(name, ONE, store=proxy.url), elsewhere(name, ONE, url=redis_url)
    held = await other.acquire()
    callers.start(limiter, 0)
    await waiting(other, 1)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    held.release()
    await callers.inside_are(0)
    callers.go(0)
    held = await soon(other.acquire())
    await asyncio.gather(
        *(limiter.astatus() for _ in range(3))
    )  # the next request does not travel alone: its call is a whole one
    proxy.replies.hold()
    callers.start(limiter, 1, 2, 3)
    await waiting(other, 3)
    held.release()
    await callers.inside_are(0, 1)

    callers.tasks[2].cancel()
    await asyncio.wait([callers.tasks[2]])
    (permit,) = queue_of(limiter)._inside._entered[callers.tasks[1]]
    assert permit.home.machine.handoff.next_waiter(permit, monotonic()) is None
    callers.go(1)
    proxy.replies.resume()
    await callers.inside_are(0, 1, 3)

    await callers.all_gone()
    await at_rest(other)


async def test_a_permit_that_the_server_has_forgotten_is_not_handed_over(
    name: str, own_server: Server, own_admin: Redis, callers: Callers
) -> None:
    """S1, F32: given a FLUSHALL, and another process that holds all permits, then a caller that
    leaves hands nothing over.
    """
    url = own_server.user_url
    limiter, other = elsewhere(name, ONE, url=url), elsewhere(name, ONE, url=url)
    await callers.come(limiter, 1, 2, 3)
    await eventually(lambda: own_admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # the process is subscribed, and sends nothing for a while
    own_admin.flushall()
    permit = await other.acquire()
    await limiter.astatus()  # the server answers that it does not know the session any more

    callers.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert callers.inside == [1]
    permit.release()
    await callers.inside_are(1, 2)
    await callers.all_gone()
    await at_rest(other)


async def test_no_permit_is_handed_over_under_a_rate(
    name: str, redis_url: str, callers: Callers
) -> None:
    """T1: given two tokens for three callers that come together, then the third stays outside when
    the second leaves.
    """
    limiter = elsewhere(name, ONE, Rate(2, per=3600), url=redis_url)
    await callers.come(limiter, 1, 2, 3)

    callers.go(1)
    await callers.inside_are(1, 2)
    callers.go(2)
    await until(lambda status: not status.limits[0].used, limiter)

    assert callers.inside == [1, 2]
    callers.tasks[3].cancel()
    await callers.all_gone()


def nothing() -> None:
    """Do nothing."""


def channel(limiter: Limiter) -> str:
    """The channel of the notifications to this loop."""
    session = queue_of(limiter).routing.session()
    return f"headgate:{session.machine.numbering.session_id.partition('.')[0]}"


async def acquire(limiter: Limiter) -> int:
    async with limiter.acquire() as permit:
        return permit.fence


async def at_rest(limiter: Limiter) -> None:
    """S7: no caller waits, and all permits are free."""
    status = await until(
        lambda status: status.waiting == 0 and not any(limit.used for limit in status.limits),
        queue_of(limiter),
    )
    assert status.waiting == 0
