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
from headgate.stores.redis.protocol.messages import Errand, abandon, nobody
from headgate.stores.redis.session.reply_timeouts import Patience
from headgate.stores.redis.session.reservations import Bookings
from headgate.stores.redis.transport.tasks import pause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.stores.redis.protocol.messages import Ticket
    from headgate.stores.redis.session.session import Lane
    from headgate.stores.redis.transport.client import Link

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


def unsaid(lane: Lane) -> list[Errand]:
    """The errands that the server has not answered, and one for a call that may have granted something in vain."""
    sent = lane._sent or lane._owed
    in_vain = lane._quits or (
        sent is not None and any(ticket.future.done() for ticket in sent.tickets)
    )
    return [
        *(sent.errands if sent else ()),
        *lane._errands,
        *([Errand("cancel", nobody)] if in_vain else ()),
    ]


def note(lane: Lane, errand: Errand) -> None:
    """`errand` goes with the next call, whenever that is.

    A signal handler, a finalizer or another thread may do this in the middle of any method of the lane.
    """
    lane._errands.append(errand)


def lasts(lane: Lane) -> bool:
    """Whether the lane has to go on when its loop ends."""
    renewals = lane.renewals
    return bool(
        unsaid(lane) or lane._waiting or lane._booked.queue or renewals.expected or renewals.holds
    )


def halt(lane: Lane) -> None:
    """The loop of `lane` does no more for it, though it may run on: another thread goes on with the lane."""
    if lane._timer is not None:
        lane._timer.cancel()
    lane._booked.halt()
    lane._patience.over()
    lane.renewals.halt()
    lane.succession.halt()


def move(lane: Lane, link: Link) -> None:
    """Go on in the loop of `link`, where none of the callers waits: the former loop has ended."""
    asked = [
        *lane._waiting.values(),
        *lane._tickets,
        *(ticket for _, ticket, _ in lane._booked.queue),
    ]
    asked += lane.renewals.expected - set(asked)
    lane.link, lane.peer, lane._timer, lane._queued, lane._hears = link, None, None, False, False
    lane._owed, lane._sent, lane._tickets = lane._sent or lane._owed, None, []
    lane._booked, lane._patience = Bookings(link.loop), Patience(lane)
    for errand in unsaid(lane):
        errand.forget()
    for ticket in asked:
        abandon(ticket.future)
        lane._give_up(ticket)
    lane.renewals.renew()
    lane.line.declare_in_time(link.loop)
    lane.send_errands()


def leave(lane: Lane, ticket: Ticket) -> None:
    """The coroutine that waits for `ticket` ends without its grant.

    The collector may close it where its loop does not run: that loop may be stopped, closed or
    another thread's. In the child of a fork the ticket belongs to the parent, and stays as it is.
    """
    if lane.link.process != os.getpid():
        return
    abandon(ticket.future)
    if lane.link.here and not lane.link.closed:
        _leave(lane, ticket)
        return
    loop, act = lane.link.loop, partial(_leave, lane, ticket)
    with suppress(RuntimeError):  # the process ends, and its leases too
        if lane.link.closed or loop is portal_loop():
            portal().tell(act)
        else:
            loop.call_soon_threadsafe(act)


def _leave(lane: Lane, ticket: Ticket) -> None:
    if lane.link.closed:
        rescue(lane)
    if ticket.permit is not None and not lane.succession.hand_over(ticket.permit):
        ticket.permit.release()
    lane._give_up(ticket)


def rescue(lane: Lane) -> None:
    """In the portal: go on with a lane whose loop was closed."""
    if lane.link.closed:
        lane.link.end()
        lane.line.adopt(lane)
    lane.send_errands()


async def flush(lanes: Iterable[Lane]) -> None:
    """Wait until the server has answered all earlier errands. Raises StoreError when it cannot be asked.

    It gathers futures, not coroutines: gather() would make tasks, and a closing loop would leave them pending.
    """
    await asyncio.gather(
        *(lane.answer_to("status -") for lane in lanes if unsaid(lane))
    )  # replies come in order


async def deliver(lane: Lane, until: float) -> None:
    """The same, tried again and again until a moment by the monotonic clock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, until - monotonic())):
            for attempt in count(1):
                try:
                    await flush([lane])
                    return
                except StoreError:
                    await asyncio.sleep(pause(attempt, LONGEST))


def kept(lane: Lane, errands: Iterable[Errand], error: StoreError) -> list[Errand]:
    """Of errands whose server is away, those to offer again."""
    owed = []
    for errand in errands:
        if errand.owed:
            owed.append(errand)
        else:
            give_up(lane, errand, error)
    return owed


def give_up(lane: Lane, errand: Errand, error: StoreError) -> None:
    """Log an errand that is given up, if no caller waits for the answer."""
    verb = errand.words.partition(" ")[0]
    if errand.told is nobody and verb in SAID:
        log(WARNING, "%s: the server did not hear of a %s: %s", title(lane.line.name), verb, error)


def turned_away(lane: Lane, errands: Iterable[Errand], error: StoreError) -> list[Errand]:
    """Of errands that the server has refused, those to offer again: a settlement once too often would change something."""
    again = []
    for errand in errands:
        errand.told(error)
        if errand.words.startswith(("settle ", "rejoin ")):
            give_up(lane, errand, error)
        elif errand.owed:
            again.append(errand)
    return again


def unsent(lanes: Iterable[Lane]) -> list[tuple[str, str, Counter[str]]]:
    """For each limiter with undelivered calls: its name, the reason, and how often each method was called."""
    found = []
    for lane in lanes:
        verbs = (errand.words.partition(" ")[0] for errand in unsaid(lane))
        if words := Counter(verb for verb in verbs if verb in SAID):
            found.append((title(lane.line.name), lane.why, words))
    return found
