"""Reply timeouts: how long the callers of a session wait for a first answer.

When the server is silent, this module fails one caller after another. One timer for all callers
without an answer costs less than a timer for each. A caller that was answered, and waits in the
queue, has a timer of its own.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from headgate.stores.redis.transport.endpoint import SILENCE
from headgate.stores.refusals import too_long

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.conversation import Conversation


class ReplyTimeouts:
    """The reply timeouts of one session's callers."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        self._timer: TimerHandle | None = None

    def listen(self, pending: PendingAcquire, seconds: float) -> None:
        pending.answer_by = self._session.loop.time() + seconds
        self._look_at(pending.answer_by)

    def limit_wait(self, pending: PendingAcquire) -> None:
        """The caller waits in the queue: set its timer if it has a `max_sleep`."""
        if pending.request.max_sleep is not None:
            # It waits for the second time: its session had expired, or a pause held it back.
            if pending.deadline is not None:
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
        """Stop the timer: all callers were answered."""
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
        """Fail a caller that has waited as long as it may, because the server counts as lost.

        If its call was sent only a moment ago, the caller waits a little longer.
        """
        silent = self._session.traffic.silence(pending)
        if silent < SILENCE:
            pending.answer_by = self._session.loop.time() + SILENCE - silent
        elif not pending.t:
            self._session.fail([pending], self._session.cannot(TimeoutError()))
