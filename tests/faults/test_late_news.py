"""A caller that gives up learns of its grant late: at that moment, or only afterwards. Either way
its tokens come back, once.

F2, F4: a call of another process grants a waiter, and the waiter is cancelled while the
notification is on its way.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from headgate import Limiter, Rate
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.session import Session
from tests.faults.scene import elsewhere, enter, eventually
from tests.world import session_of, soon, waiting

TEN = Rate(10, per=1000, unit="tokens")  # next to nothing flows back while a test lasts


async def left(limiter: Limiter) -> int:
    """How many tokens are left, once all earlier requests have arrived."""
    return (await soon(limiter.astatus())).limits[0].left


def channel(limiter: Limiter) -> str:
    """The channel of the notifications to this loop."""
    loop_session = session_of(limiter)
    return f"headgate:{loop_session.machine.numbering.session_id.partition('.')[0]}"


async def test_one_token_comes_back_when_a_waiter_is_cancelled_as_its_notification_arrives(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1, T5: given a waiter granted from elsewhere, when it is cancelled as the notification
    arrives, then one token comes back, not two.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    waiter = asyncio.create_task(enter(limiter, tokens=1))
    await waiting(other, 1)
    on_notification = LoopSession.on_notification

    def cancelled_first(loop_session: LoopSession, notification: str) -> None:
        if len(notification.split()) > 3:  # it brings a grant
            waiter.cancel()
        on_notification(loop_session, notification)

    monkeypatch.setattr(LoopSession, "on_notification", cancelled_first)
    # The reply to a poll might be faster than the notification.
    monkeypatch.setattr(Session, "on_time", lambda session, now: None)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    permit.settle(tokens=8)
    with pytest.raises(asyncio.CancelledError):
        await soon(waiter)

    assert await left(limiter) == 2


async def test_the_token_comes_back_when_a_waiter_is_cancelled_before_the_reply_with_its_grant(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2, T5: given a waiter granted from elsewhere, when it is cancelled before the reply that
    brings the grant, then no token is lost.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    waiter = asyncio.create_task(enter(limiter, tokens=1))
    await waiting(other, 1)
    answered, loop = LoopSession.answered, asyncio.get_running_loop()

    def cancelled_first(loop_session: LoopSession, reply: Any) -> None:
        if loop_session.waits and reply.partition(b"|")[2]:  # it brings a grant
            waiter.cancel()
            loop.call_soon(answered, loop_session, reply)  # the task runs first
        else:
            answered(loop_session, reply)

    monkeypatch.setattr(LoopSession, "on_notification", lambda loop_session, notification: None)
    monkeypatch.setattr(LoopSession, "answered", cancelled_first)
    permit.settle(tokens=8)
    await waiting(other, 0)
    await left(limiter)
    with pytest.raises(asyncio.CancelledError):
        await soon(waiter)

    assert await left(limiter) == 2


async def test_all_tokens_come_back_when_several_waiters_give_up_at_once(
    name: str, redis_url: str
) -> None:
    """T2, T5: given a large cost and small ones behind it, when all are cancelled, then the tokens
    of the small ones come back.
    """
    limiter = elsewhere(name, TEN, url=redis_url)
    await limiter.acquire(tokens=5)
    waiters = []
    for cost in (9, 1, 1, 1):
        waiters.append(asyncio.create_task(enter(limiter, tokens=cost)))
        await waiting(limiter, len(waiters))

    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)

    assert await left(limiter) == 5


async def test_a_notification_of_a_later_grant_waits_for_the_earlier_grant(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: given a reply that grants the first in the queue, when the notification for the second is
    faster, then the first goes first.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    through: list[int] = []

    async def caller(number: int) -> None:
        await limiter.acquire(tokens=1)
        through.append(number)

    callers = [asyncio.create_task(caller(number)) for number in (1, 2)]
    await waiting(other, 2)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # the session was subscribed before this call
    loop_session, on_notification, answered = (
        session_of(limiter),
        LoopSession.on_notification,
        LoopSession.answered,
    )
    notifications: list[str] = []
    replies: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            LoopSession, "on_notification", lambda loop_session, notification: None
        )  # lost: a reply will bring the grant of the first
        permit.settle(tokens=9)
        await waiting(other, 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            LoopSession,
            "on_notification",
            lambda loop_session, notification: (
                notifications.append(notification),
                on_notification(loop_session, notification),
            ),
        )
        patch.setattr(
            LoopSession,
            "answered",
            lambda its, reply: (
                replies.append(reply) if its is loop_session else answered(its, reply)
            ),
        )
        loop_session.poll()
        await eventually(lambda: replies)
        permit.settle(tokens=8)
        await eventually(lambda: any(len(each.split()) > 3 for each in notifications))
    answered(loop_session, replies[0])
    await soon(asyncio.gather(*callers))

    assert through == [1, 2]


async def test_a_session_asks_for_a_lost_notification_before_it_applies_later_ones(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: given a lost notification for the first in the queue, when that for the second comes,
    then the second has to wait.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    through: list[int] = []

    async def caller(number: int) -> None:
        await limiter.acquire(tokens=1)
        through.append(number)

    callers = [asyncio.create_task(caller(number)) for number in (1, 2)]
    await waiting(other, 2)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # the session was subscribed before this call
    with monkeypatch.context() as patch:
        patch.setattr(LoopSession, "on_notification", lambda loop_session, notification: None)
        permit.settle(tokens=9)
        await waiting(other, 1)
    permit.settle(tokens=8)
    await soon(asyncio.gather(*callers))

    assert through == [1, 2]
