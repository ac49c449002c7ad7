"""Delivery: the releases and settings of a lane's callers reach the server, though their loop ends.

Here lives waiting for that, naming those that have not arrived, and moving a lane from a loop that has ended to one that runs.
This module belongs to session.py, and uses its state.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from logging import WARNING
from time import monotonic
from typing import TYPE_CHECKING

from headgate.errors import StoreError
from headgate.keys import title
from headgate.logs import log
from headgate.stores.redis.blocking.portal import portal, portal_loop
from headgate.stores.redis.protocol.messages import Operation, abandon, ignore_reply
from headgate.stores.redis.session.reply_timeouts import ReplyTimeouts
from headgate.stores.redis.session.reservations import Reservations
from headgate.stores.redis.transport.tasks import pause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.stores.redis.protocol.messages import PendingAcquire
    from headgate.stores.redis.session.session import Session
    from headgate.stores.redis.transport.client import Client

SAID = (
    "release",
    "settle",
    "update",
    "pause",
    "resume",
    "reset",
    "drain",
)  # the errands that a caller asked for
LONGEST = 0.5  # seconds before another attempt, at most


def unsaid(session: Session) -> list[Operation]:
    """The errands that the server has not answered, and one for a call that may have granted something in vain."""
    sent = session._sent or session._owed
    in_vain = session._quits or (
        sent is not None and any(pending.future.done() for pending in sent.acquires)
    )
    return [
        *(sent.operations if sent else ()),
        *session._operations,
        *([Operation("cancel", ignore_reply)] if in_vain else ()),
    ]


def note(session: Session, operation: Operation) -> None:
    """`errand` goes with the next call, whenever that is.

    A signal handler, a finalizer or another thread may do this in the middle of any method of the lane.
    """
    session._operations.append(operation)


def lasts(session: Session) -> bool:
    """Whether the lane has to go on when its loop ends."""
    renewal = session.renewal
    return bool(
        unsaid(session)
        or session._waiting
        or session._reserved.queue
        or renewal.expected
        or renewal.holds
    )


def unfinished(session: Session) -> list[PendingAcquire]:
    """The acquires that were not sent, wait, or sleep until their moment."""
    sleeping = (pending for _, pending, _ in session._reserved.queue)
    return [*session._waiting.values(), *session._acquires, *sleeping]


def halt(session: Session) -> None:
    """The loop of `session` does no more for it, though it may run on."""
    if session._timer is not None:
        session._timer.cancel()
    session._reserved.halt()
    session._reply_timeouts.over()
    session.renewal.halt()
    session.handoff.halt()


def cancel_callers(session: Session) -> None:
    """Cancel what waits in the loop of `session`, before another thread goes on with the session.

    This happens here, where that loop still runs: asyncio lets no other thread do it.
    """
    for pending in unfinished(session):
        abandon(pending.future)
    for operation in unsaid(session):
        operation.forget()


def move(session: Session, client: Client) -> None:
    """Go on in the loop of `client`, where no caller waits: the former loop has ended."""
    asked = unfinished(session)
    asked += session.renewal.expected - set(asked)
    session.client, session.node, session._timer, session._queued, session._hears = (
        client,
        None,
        None,
        False,
        False,
    )
    session._owed, session._sent, session._acquires = session._sent or session._owed, None, []
    session._reserved, session._reply_timeouts = Reservations(client.loop), ReplyTimeouts(session)
    for pending in asked:
        session._give_up(pending)
    session.renewal.renew()
    session.queue.declare_in_time(client.loop)
    session.send_operations()


def leave(session: Session, pending: PendingAcquire) -> None:
    """The coroutine that waits for `ticket` ends without its grant.

    The collector may close it where its loop does not run: that loop may be stopped, closed or
    another thread's. In the child of a fork the ticket belongs to the parent, and stays as it is.
    """
    if session.client.process != os.getpid():
        return
    abandon(pending.future)
    if session.client.here and not session.client.closed:
        _leave(session, pending)
        return
    loop, act = session.client.loop, partial(_leave, session, pending)
    with suppress(RuntimeError):  # the process ends, and its leases too
        if session.client.closed or loop is portal_loop():
            portal().tell(act)
        else:
            loop.call_soon_threadsafe(act)


def _leave(session: Session, pending: PendingAcquire) -> None:
    if session.client.closed:
        rescue(session)
    if pending.permit is not None and not session.handoff.hand_over(pending.permit):
        pending.permit.release()
    session._give_up(pending)


def send_noted(session: Session) -> None:
    """Send what was noted, in the loop that was the session's then. By now another may have it."""
    if session.client.here and not session.client.closed:
        session.send_operations()
    else:
        with suppress(RuntimeError):  # the process ends, and its leases too
            portal().tell(partial(rescue, session))


def rescue(session: Session) -> None:
    """In the portal: go on with a lane whose loop was closed."""
    if session.client.closed:
        session.client.end()
        session.queue.adopt(session)
    session.send_operations()


async def flush(sessions: Iterable[Session]) -> None:
    """Wait until the server has answered all earlier errands. Raises StoreError when it cannot be asked.

    It gathers futures, not coroutines: gather() would make tasks, and a closing loop would leave them pending.
    """
    await asyncio.gather(
        *(session.answer_to("status -") for session in sessions if unsaid(session))
    )  # replies come in order


async def deliver(session: Session, until: float) -> None:
    """The same, tried again and again until a moment by the monotonic clock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, until - monotonic())):
            for attempt in count(1):
                try:
                    await flush([session])
                    return
                except StoreError:
                    await asyncio.sleep(pause(attempt, LONGEST))


def kept(session: Session, operations: Iterable[Operation], error: StoreError) -> list[Operation]:
    """Of errands whose server is away, those to offer again."""
    owed = []
    for operation in operations:
        if operation.owed:
            owed.append(operation)
        else:
            give_up(session, operation, error)
    return owed


def give_up(session: Session, operation: Operation, error: StoreError) -> None:
    """Log an errand that is given up, if no caller waits for the answer."""
    verb = operation.words.partition(" ")[0]
    if operation.told is ignore_reply and verb in SAID:
        log(
            WARNING,
            "%s: the server did not hear of a %s: %s",
            title(session.queue.name),
            verb,
            error,
        )


def turned_away(
    session: Session, operations: Iterable[Operation], error: StoreError
) -> list[Operation]:
    """Of errands that the server has refused, those to offer again: a settlement once too often would change something."""
    again = []
    for operation in operations:
        operation.told(error)
        if operation.words.startswith(("settle ", "rejoin ")):
            give_up(session, operation, error)
        elif operation.owed:
            again.append(operation)
    return again


def unsent(sessions: Iterable[Session]) -> list[tuple[str, str, Counter[str]]]:
    """For each limiter with undelivered calls: its name, the reason, and how often each method was called."""
    found = []
    for session in sessions:
        verbs = (operation.words.partition(" ")[0] for operation in unsaid(session))
        if words := Counter(verb for verb in verbs if verb in SAID):
            found.append((title(session.queue.name), session.why, words))
    return found
