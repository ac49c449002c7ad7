"""Patience: for how long the callers of a lane listen for the first answer to what they have asked.

Here lives giving a silent server up for one caller after another. One look at all who have not been answered costs less than a
timer for each of them. A caller that was answered, and waits, has a deadline of its own.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from headgate.stores.redis.transport.endpoint import SILENCE
from headgate.stores.refusals import too_long

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from headgate.stores.redis.protocol.messages import Ticket
    from headgate.stores.redis.session.session import Lane


class Patience:
    """Of the callers of one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._timer: TimerHandle | None = None

    def listen(self, ticket: Ticket, seconds: float) -> None:
        ticket.hope = self._lane.link.loop.time() + seconds
        self._look_at(ticket.hope)

    def limit_wait(self, ticket: Ticket) -> None:
        """The caller waits in the queue, for as long as it may."""
        if ticket.request.max_sleep is not None:
            if (
                ticket.deadline is not None
            ):  # it waits for the second time: its session had lapsed, or it was held back
                ticket.deadline.cancel()
            left = ticket.request.max_sleep / 1_000_000 - (monotonic() - ticket.start)
            ticket.deadline = self._lane.link.loop.call_later(
                max(0.0, left), self._too_late, ticket
            )

    def _too_late(self, ticket: Ticket) -> None:
        if not ticket.t:
            delay = 0.0 if ticket.due == inf else max(0.0, ticket.due - monotonic())
            ticket.settle(too_long(self._lane.line.name, ticket.request, int(delay * 1_000_000)))

    def over(self) -> None:
        """All were answered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, moment: float) -> None:
        if self._timer is None or self._timer.when() > moment:
            self.over()
            self._timer = self._lane.link.loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        unheard = self._lane.unheard()
        for ticket in unheard:
            if ticket.hope <= self._lane.link.loop.time():
                self._lose(ticket)
        hopes = [ticket.hope for ticket in unheard if not (ticket.t or ticket.future.done())]
        if (moment := min(hopes, default=inf)) < inf:
            self._look_at(moment)

    def _lose(self, ticket: Ticket) -> None:
        """Nothing has come back for as long as it may wait: unless it was asked a moment ago, the server is as good as gone."""
        silent = self._lane.silence(ticket)
        if silent < SILENCE:
            ticket.hope = self._lane.link.loop.time() + SILENCE - silent
        elif not ticket.t:
            self._lane.link.fail(self._lane, [ticket], self._lane.link.cannot(TimeoutError()))
