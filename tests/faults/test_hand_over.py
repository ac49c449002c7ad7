"""A permit goes from hand to hand inside of a process: who leaves gives it to who enters next, and
the server hears of it later.

S1, S3, S6, S7: nobody is passed by, nothing is held twice, and nothing is lost, whatever comes in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate
from headgate.internals import queue_of
from headgate.stores.redis.session import session
from headgate.stores.redis.session.local_handoff import LocalHandoff
from tests.faults.proxy import Proxy
from tests.faults.scene import elsewhere, eventually
from tests.servers import Server
from tests.world import soon, until, waiting

ONE = Concurrency(1)


class Visitors:
    """Tasks that enter a limiter, say so, and stay until they are told to go."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.before_leaving: dict[
            int, Callable[[], object]
        ] = {}  # what a visitor does in the turn in which it leaves
        self.after_leaving: dict[int, Callable[[], object]] = {}
        self._told: dict[int, asyncio.Event] = {}

    async def _visit(self, limiter: Limiter, number: int) -> None:
        async with limiter:
            self.inside.append(number)
            await self._told[number].wait()
            self.before_leaving.get(number, nothing)()
        self.after_leaving.get(number, nothing)()

    def start(self, limiter: Limiter, *numbers: int) -> None:
        for number in numbers:
            self._told[number] = asyncio.Event()
            self.tasks[number] = asyncio.create_task(self._visit(limiter, number))

    async def come(self, limiter: Limiter, *numbers: int) -> None:
        """All in one call, and wait until the server has answered it."""
        self.start(limiter, *numbers)
        await asyncio.sleep(0)
        await limiter.astatus()
        await limiter.astatus()

    def go(self, number: int) -> None:
        self._told[number].set()

    async def inside_are(self, *numbers: int) -> None:
        await eventually(lambda: self.inside == list(numbers))

    async def all_gone(self) -> None:
        for told in self._told.values():
            told.set()
        await soon(asyncio.gather(*self.tasks.values(), return_exceptions=True))


@pytest.fixture
def visitors() -> Visitors:
    return Visitors()


async def test_a_permit_goes_from_hand_to_hand_while_the_server_says_nothing(
    name: str, proxy: Proxy, visitors: Visitors
) -> None:
    """S6: given three who came together, when the replies are held, each enters as the one before
    it leaves, in order.
    """
    limiter = Limiter(name, ONE, store=proxy.url)
    await visitors.come(limiter, 1, 2, 3)
    proxy.replies.hold()

    visitors.go(1)
    await visitors.inside_are(1, 2)
    visitors.go(2)
    await visitors.inside_are(1, 2, 3)

    proxy.replies.resume()
    await visitors.all_gone()
    await at_rest(limiter)


async def test_the_server_counts_what_is_held_and_who_waits_all_the_same(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """S1, S7: seen from elsewhere one permit is held all the time, and nobody else is let in."""
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, *range(20))

    for number in range(19):
        visitors.go(number)
        await visitors.inside_are(*range(number + 2))
        assert not await other.atry_acquire()

    status = await until(lambda status: status.waiting == 0, queue_of(other))
    assert [limit.used for limit in status.limits] == [1]
    await visitors.all_gone()
    await at_rest(other)


async def test_the_server_hears_of_it_soon_though_there_is_nothing_else_to_say(
    name: str, redis_url: str, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: given no renewal and no sign of life for an hour, an heir gives up its place in the queue
    all the same.
    """
    monkeypatch.setattr(session, "HEARTBEAT", 3600.0)
    lasting = Concurrency(1, lease=3 * 3600.0)
    limiter, other = (
        elsewhere(name, lasting, url=redis_url),
        elsewhere(name, lasting, url=redis_url),
    )
    await visitors.come(limiter, 1, 2, 3)

    for number in (1, 2):
        visitors.go(number)
        await visitors.inside_are(*range(1, number + 2))
        await until(lambda status, left=2 - number: status.waiting == left, queue_of(other))

    await visitors.all_gone()
    await at_rest(other)


async def test_who_came_from_elsewhere_in_between_is_not_passed_by(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """S6: given two here, one elsewhere, and one here behind it: the second here takes over, and
    then it is the other's turn.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1, 2)
    await visitors.come(other, 3)
    await visitors.come(limiter, 4)

    for number in (1, 2, 3, 4):
        await visitors.inside_are(*range(1, number + 1))
        visitors.go(number)

    await visitors.all_gone()
    await at_rest(other)


async def test_who_was_behind_others_is_known_to_be_first_when_its_turn_has_come(
    name: str, proxy: Proxy, redis_url: str, visitors: Visitors
) -> None:
    """Given two here behind two elsewhere, when the first of them is inside and the replies are
    held, the second takes over.
    """
    limiter, other = Limiter(name, ONE, store=proxy.url), elsewhere(name, ONE, url=redis_url)
    await visitors.come(other, 1, 2)
    await visitors.come(limiter, 3, 4)
    for number in (1, 2):
        visitors.go(number)
    await visitors.inside_are(1, 2, 3)
    proxy.replies.hold()

    visitors.go(3)
    await visitors.inside_are(1, 2, 3, 4)

    proxy.replies.resume()
    await visitors.all_gone()
    await at_rest(other)


async def test_who_comes_behind_those_who_are_known_to_be_first_is_known_too(
    name: str, proxy: Proxy, visitors: Visitors
) -> None:
    """Given callers who come one by one while the first is inside, when the replies are held, they
    take over in order.
    """
    limiter = Limiter(name, ONE, store=proxy.url)
    for number in (1, 2, 3):
        await visitors.come(limiter, number)
    proxy.replies.hold()

    visitors.go(1)
    await visitors.inside_are(1, 2)
    visitors.go(2)
    await visitors.inside_are(1, 2, 3)

    proxy.replies.resume()
    await visitors.all_gone()
    await at_rest(limiter)


@pytest.mark.parametrize("when", ["before", "just before", "just after", "after"])
async def test_an_heir_that_is_cancelled_leaves_the_permit_to_the_next(
    name: str, redis_url: str, visitors: Visitors, when: str
) -> None:
    """S7, L4: given three, when the second is cancelled around the moment at which the first
    leaves, the third enters.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1, 2, 3)

    cancel = visitors.tasks[2].cancel
    visitors.before_leaving[1] = cancel if when == "just before" else nothing
    visitors.after_leaving[1] = cancel if when == "just after" else nothing
    if when == "before":
        cancel()
    visitors.go(1)
    if when == "after":
        await visitors.inside_are(1, 2)
        cancel()

    await visitors.inside_are(*((1, 2, 3) if when == "after" else (1, 3)))
    await visitors.all_gone()
    await at_rest(limiter)


async def test_what_the_server_has_granted_to_an_heir_meanwhile_goes_on(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """S1, S3, S7: given two permits, one here and one elsewhere, that are left in the same moment:
    both heirs are granted once.
    """
    two = Concurrency(2)
    limiter, other = elsewhere(name, two, url=redis_url), elsewhere(name, two, url=redis_url)
    permit = await other.acquire()
    await visitors.come(limiter, 1, 2, 3, 4)

    permit.release()  # which the server gives to 2
    visitors.go(1)  # and so do we
    await visitors.inside_are(1, 2, 3)

    assert not await other.atry_acquire()
    await visitors.all_gone()
    await at_rest(other)


async def test_whoever_asks_for_a_permit_of_its_own_gets_one_from_the_server(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """S5: what is handed over has no new fence, so only those get it who never see one."""
    limiter = elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1)
    acquiring = [asyncio.ensure_future(acquire(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    await visitors.all_gone()
    fences = [await soon(each) for each in acquiring]

    assert fences == sorted(set(fences))
    await at_rest(limiter)


@pytest.mark.parametrize(
    "changes",
    [(Concurrency(1),), (Concurrency(2), Rate(1, per=3600, initial=0))],
    ids=["lowered", "a rate is added"],
)
async def test_after_a_change_of_the_limits_the_server_decides(
    name: str, proxy: Proxy, visitors: Visitors, changes: tuple[Concurrency | Rate, ...]
) -> None:
    """S1: given two inside and others waiting, when the limits change, who leaves lets nobody in
    that they would not.
    """
    limiter = Limiter(name, Concurrency(2), store=proxy.url)
    await visitors.come(limiter, 1, 2, 3, 4)
    await limiter.aupdate(*changes)

    visitors.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert visitors.inside == [1, 2]
    await limiter.aupdate(Concurrency(2))
    await visitors.inside_are(1, 2, 3)
    await visitors.all_gone()
    await at_rest(limiter)


async def test_limits_that_come_back_are_new_ones(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """S1: given one permit, then three by another process, and one again by our own, who leaves
    lets nobody in that is too many.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1, 2, 3, 4)
    await other.aupdate(Concurrency(3))
    await visitors.inside_are(1, 2, 3)
    await limiter.aupdate(ONE)

    visitors.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert visitors.inside == [1, 2, 3]
    await visitors.all_gone()
    await at_rest(other)


async def test_under_limits_of_somebody_else_permits_go_from_hand_to_hand_too(
    name: str, proxy: Proxy, redis_url: str, visitors: Visitors
) -> None:
    """Given limits that another process has set, when the server has granted under them and the
    replies are held.
    """
    limiter, other = (
        Limiter(name, Concurrency(2), store=proxy.url),
        elsewhere(name, Concurrency(2), url=redis_url),
    )
    await limiter.astatus()
    await other.aupdate(ONE)
    await limiter.astatus()
    await visitors.come(limiter, 1, 2)
    proxy.replies.hold()

    visitors.go(1)
    await visitors.inside_are(1, 2)

    proxy.replies.resume()
    await visitors.all_gone()
    await at_rest(other)


async def test_in_a_pause_nobody_takes_over(name: str, redis_url: str, visitors: Visitors) -> None:
    """Given two who wait, when all are paused and the one inside leaves, the others enter after the
    pause, in order.
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1, 2, 3)
    began = monotonic()
    await limiter.apause(0.2)

    visitors.go(1)
    status = await until(lambda status: not status.limits[0].used, other)
    assert (visitors.inside, status.waiting) == ([1], 2)

    await visitors.inside_are(1, 2)
    assert monotonic() - began >= 0.2
    await visitors.all_gone()
    await at_rest(other)


@pytest.mark.parametrize(
    "doubt", ["the lease is lost", "the lease is nearly over", "nothing was heard for long"]
)
async def test_in_doubt_the_server_is_asked(
    name: str, redis_url: str, visitors: Visitors, monkeypatch: pytest.MonkeyPatch, doubt: str
) -> None:
    """S2, S6: given a lease or a place in the queue that is not certain any more, who leaves hands
    nothing over.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    await visitors.come(limiter, 1, 2)
    (permit,) = queue_of(limiter)._inside._entered[visitors.tasks[1]]
    assert permit.home.machine.handoff.next_waiter(permit, monotonic()), "it would be handed over"
    if doubt == "nothing was heard for long":
        permit.home.machine.last_reply.asked_at -= 2 * session.HEARTBEAT
    else:
        permit.believed = 0.0 if doubt == "the lease is lost" else monotonic() + ONE.lease / 8
    handed: list[bool] = []
    hand_over = LocalHandoff.hand_over
    monkeypatch.setattr(
        LocalHandoff,
        "hand_over",
        lambda its, permit, now: handed.append(hand_over(its, permit, now)) or handed[-1],
    )

    visitors.go(1)
    await visitors.inside_are(1, 2)

    assert handed == [False]
    await visitors.all_gone()
    await at_rest(limiter)


async def test_a_letter_from_before_a_cut_says_nothing_of_it(
    name: str, proxy: Proxy, redis_url: str, visitors: Visitors
) -> None:
    """S1: given a grant that was made before the capacity was lowered and is heard of after it, who
    leaves lets nobody in.
    """
    limiter, other = (
        Limiter(name, Concurrency(3), store=proxy.url),
        elsewhere(name, Concurrency(3), url=redis_url),
    )
    permit = await other.acquire()
    await visitors.come(limiter, 1, 2, 3, 4, 5)
    proxy.announcements.hold()
    await permit.arelease()
    await limiter.aupdate(Concurrency(1))
    proxy.announcements.resume()
    await visitors.inside_are(1, 2, 3)

    visitors.go(1)
    visitors.go(2)
    await until(lambda status: status.limits[0].used == 1, other)

    assert visitors.inside == [1, 2, 3]
    visitors.go(3)
    await visitors.inside_are(1, 2, 3, 4)
    await visitors.all_gone()
    await at_rest(limiter)


async def test_who_was_cancelled_before_it_was_answered_is_no_heir(
    name: str, proxy: Proxy, redis_url: str, admin: Redis, visitors: Visitors
) -> None:
    """S7: given three of one call whose reply is held, and an announcement that lets the first in:
    when the second is cancelled and the first leaves, the third enters.
    """
    limiter, other = Limiter(name, ONE, store=proxy.url), elsewhere(name, ONE, url=redis_url)
    held = await other.acquire()
    visitors.start(limiter, 0)
    await waiting(other, 1)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    held.release()
    await visitors.inside_are(0)
    visitors.go(0)
    held = await soon(other.acquire())
    await asyncio.gather(
        *(limiter.astatus() for _ in range(3))
    )  # who asks next is not alone: its call is a whole one
    proxy.replies.hold()
    visitors.start(limiter, 1, 2, 3)
    await waiting(other, 3)
    held.release()
    await visitors.inside_are(0, 1)

    visitors.tasks[2].cancel()
    await asyncio.wait([visitors.tasks[2]])
    (permit,) = queue_of(limiter)._inside._entered[visitors.tasks[1]]
    assert permit.home.machine.handoff.next_waiter(permit, monotonic()) is None
    visitors.go(1)
    proxy.replies.resume()
    await visitors.inside_are(0, 1, 3)

    await visitors.all_gone()
    await at_rest(other)


async def test_a_permit_that_the_server_has_forgotten_is_not_handed_on(
    name: str, own_server: Server, own_admin: Redis, visitors: Visitors
) -> None:
    """S1, F32: given a FLUSHALL, and another process that holds all there is: whoever is inside
    here leaves to nobody.
    """
    url = own_server.user_url
    limiter, other = elsewhere(name, ONE, url=url), elsewhere(name, ONE, url=url)
    await visitors.come(limiter, 1, 2, 3)
    await eventually(lambda: own_admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # it listens, and has nothing to say for a while
    own_admin.flushall()
    permit = await other.acquire()
    await limiter.astatus()  # it hears that it is not known any more

    visitors.go(1)
    await limiter.astatus()
    await limiter.astatus()

    assert visitors.inside == [1]
    permit.release()
    await visitors.inside_are(1, 2)
    await visitors.all_gone()
    await at_rest(other)


async def test_where_a_rate_counts_too_the_server_decides(
    name: str, redis_url: str, visitors: Visitors
) -> None:
    """T1: given two tokens for three who come together, the third stays outside when the second
    leaves.
    """
    limiter = elsewhere(name, ONE, Rate(2, per=3600), url=redis_url)
    await visitors.come(limiter, 1, 2, 3)

    visitors.go(1)
    await visitors.inside_are(1, 2)
    visitors.go(2)
    await until(lambda status: not status.limits[0].used, limiter)

    assert visitors.inside == [1, 2]
    visitors.tasks[3].cancel()
    await visitors.all_gone()


def nothing() -> None:
    """There is nothing to do."""


def channel(limiter: Limiter) -> str:
    """Where announcements to this loop are sent."""
    return f"headgate:{queue_of(limiter).session().machine.numbering.session_id.partition('.')[0]}"


async def acquire(limiter: Limiter) -> int:
    async with limiter.acquire() as permit:
        return permit.fence


async def at_rest(limiter: Limiter) -> None:
    """S7: nobody waits, and all of it can be had."""
    status = await until(
        lambda status: status.waiting == 0 and not any(limit.used for limit in status.limits),
        queue_of(limiter),
    )
    assert status.waiting == 0
