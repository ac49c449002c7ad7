"""Delivery: releases and other operations reach the server, even if the loop of a session ends.

This module waits for that, and names the calls that have not arrived. It hands the sessions of a
loop that has ended to the portal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, cast

from headgate.errors import StoreError
from headgate.keys import title
from headgate.stores.redis.protocol.operations import AskStatus
from headgate.stores.redis.session.loop_session import abandon
from headgate.stores.redis.transport.backoff import backoff
from headgate.stores.redis.transport.portal import portal
from headgate.stores.redis.transport.shutdown import report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.stores.redis.session.loop_session import LoopSession
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.lifecycle import Unsent

LONGEST = 0.5  # seconds before another attempt, at most


class Delivery:
    """The client's way to its sessions when its loop ends, and before the process ends."""

    def take_over(self, client: Client) -> None:
        """The portal goes on with the sessions of `client` that owe or hold something."""
        sessions = sessions_of(client)
        for session in sessions:
            session.halt()
        lasting = [session for session in sessions if lasts(session)]
        client.senders.clear()
        if not lasting or client.of_portal:
            return
        for session in lasting:
            cancel_callers(session)
        try:
            portal().loop.call_soon_threadsafe(adopt, lasting)
        except RuntimeError:  # the process has ended, too
            report(unsent(lasting))

    async def deliver(self, client: Client, until: float) -> None:
        """Wait until the calls have arrived, until `until` at most."""
        sessions = [session for session in sessions_of(client) if session.traffic.must_deliver]
        await asyncio.gather(*(deliver(session, until) for session in sessions))

    def unsent(self, client: Client) -> list[Unsent]:
        return unsent(sessions_of(client))


def sessions_of(client: Client) -> list[LoopSession]:
    return cast("list[LoopSession]", [*client.senders.values(), *client.adopted])


def lasts(session: LoopSession) -> bool:
    """Whether the session must go on when its loop ends."""
    renewal = session.machine.renewal
    waits = session.traffic.waiting or session.traffic.reserved.sleepers
    return bool(session.traffic.must_deliver or waits or renewal.expected or renewal.held)


def cancel_callers(session: LoopSession) -> None:
    """Cancel the callers in the loop of `session`, before another thread goes on with the session.

    This happens here, where that loop still runs: asyncio lets no other thread do it.
    """
    for pending in session.traffic.unfinished():
        abandon(pending.future)
    for operation in session.traffic.undelivered():
        if operation.asker is not None:
            abandon(operation.asker)
            # A future is done now. A `Callback` is not: it gets the answer from any loop.
            if operation.asker.done():
                operation.asker = None


def adopt(sessions: Iterable[LoopSession]) -> None:
    """In the portal: go on with sessions whose loop has ended."""
    for session in sessions:
        session.queue.adopt(session)


async def flush(sessions: Iterable[LoopSession]) -> None:
    """Wait until the server has answered all earlier operations.

    Raises StoreError when the server cannot be asked. Replies come in order, so one answer is
    enough. It gathers futures, not coroutines: gather() would make tasks, and a closing loop would
    leave them pending.
    """
    await asyncio.gather(
        *(session.ask(AskStatus()) for session in sessions if session.traffic.must_deliver)
    )


async def deliver(session: LoopSession, until: float) -> None:
    """Flush again and again, until a moment by the monotonic clock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, until - monotonic())):
            for attempt in count(1):
                try:
                    await flush([session])
                    return
                except StoreError:
                    await asyncio.sleep(backoff(attempt, LONGEST))


def unsent(sessions: Iterable[LoopSession]) -> list[Unsent]:
    """For each limiter with undelivered calls: its name, the reason, and each method's calls."""
    found = []
    for session in sessions:
        undelivered = session.traffic.undelivered()
        if words := Counter(operation.verb for operation in undelivered if operation.logged):
            found.append((title(session.queue.name), session.why, words))
    return found
