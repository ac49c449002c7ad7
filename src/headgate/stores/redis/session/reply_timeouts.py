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

    from headgate.stores.redis.protocol.messages import PendingAcquire
    from headgate.stores.redis.session.conversation import Conversation


class ReplyTimeouts:
    """Of the callers of one lane."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        self._timer: TimerHandle | None = None

    def listen(self, pending: PendingAcquire, seconds: float) -> None:
        pending.answer_by = self._session.loop.time() + seconds
        self._look_at(pending.answer_by)

    def limit_wait(self, pending: PendingAcquire) -> None:
        """The caller waits in the queue, for as long as it may."""
        if pending.request.max_sleep is not None:
            if (
                pending.deadline is not None
            ):  # it waits for the second time: its session had lapsed, or it was held back
                pending.deadline.cancel()
            left = pending.request.max_sleep / 1_000_000 - (monotonic() - pending.start)
            pending.deadline = self._session.loop.call_later(
                max(0.0, left), self._too_late, pending
            )

    def _too_late(self, pending: PendingAcquire) -> None:
        if not pending.t:
            delay = 0.0 if pending.due == inf else max(0.0, pending.due - monotonic())
            pending.settle(too_long(self._session.name, pending.request, int(delay * 1_000_000)))

    def cancel(self) -> None:
        """All were answered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, moment: float) -> None:
        if self._timer is None or self._timer.when() > moment:
            self.cancel()
            self._timer = self._session.loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._timer = None
        without_answer = self._session.traffic.without_answer()
        for pending in without_answer:
            if pending.answer_by <= self._session.loop.time():
                self._give_up(pending)
        moments = [
            pending.answer_by
            for pending in without_answer
            if not (pending.t or pending.future.done())
        ]
        if (moment := min(moments, default=inf)) < inf:
            self._look_at(moment)

    def _give_up(self, pending: PendingAcquire) -> None:
        """Nothing has come back for as long as it may wait: unless it was asked a moment ago, the server is as good as gone."""
        silent = self._session.traffic.silence(pending)
        if silent < SILENCE:
            pending.answer_by = self._session.loop.time() + SILENCE - silent
        elif not pending.t:
            self._session.fail([pending], self._session.cannot(TimeoutError()))
