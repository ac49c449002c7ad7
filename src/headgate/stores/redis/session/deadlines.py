"""How long the callers of a session wait for a first answer, and in the queue.

All callers without an answer share one moment, which costs less than one for each. A caller that
waits in the queue has a deadline of its own.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from headgate.stores.redis.session.acquires import Deadline
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT, SILENCE
from headgate.stores.redis.transport.failures import cannot
from headgate.stores.refusals import too_long

if TYPE_CHECKING:
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.traffic import Traffic

FEWEST = 64  # so many deadlines of ended callers may always stay


class Deadlines:
    def __init__(self, traffic: Traffic, limits: LimitSync, place: object) -> None:
        self._traffic = traffic
        self._limits = limits
        self._place = place  # the store, as errors name it
        # The first moment at which a caller without an answer fails.
        self.answer_by = inf
        self._deadlines: list[Deadline] = []  # a heap
        self._ended = 0  # how many of them are of ended callers
        self.moment = inf  # of the next deadline, or `answer_by`

    def begin(self, pending: PendingAcquire, max_sleep: int) -> None:
        """Limit the wait for a first answer."""
        answer_by = first_deadline(pending, max_sleep)
        self.answer_by = min(self.answer_by, answer_by)
        self.moment = min(self.moment, answer_by)

    def limit_wait(self, pending: PendingAcquire, max_sleep: int) -> None:
        """Limit the wait in the queue. A caller that has to queue again keeps its deadline."""
        if pending.deadline is None:
            moment = pending.start + max_sleep / 1_000_000
            pending.deadline = Deadline(moment, pending.number, [pending])
            heappush(self._deadlines, pending.deadline)
            self.moment = min(self.moment, moment)

    def end(self, pending: PendingAcquire, deadline: Deadline) -> None:
        pending.deadline = None
        deadline.callers.clear()
        self._ended += 1
        if self._ended > max(FEWEST, len(self._deadlines) // 2):
            # Copy, because the collector may end another caller here.
            live = [each for each in self._deadlines.copy() if each.callers]
            heapify(live)
            self._deadlines, self._ended = live, 0
        self._plan()

    def _plan(self) -> None:
        while self._deadlines and not self._deadlines[0].callers:
            heappop(self._deadlines)
            self._ended -= 1
        first = self._deadlines[0].moment if self._deadlines else inf
        self.moment = min(self.answer_by, first)

    def all_answered(self) -> None:
        self.answer_by = inf
        self._plan()

    def clear(self) -> None:
        self.answer_by, self._deadlines, self._ended, self.moment = inf, [], 0, inf

    def end_waits(self, now: float) -> None:
        """Fail the callers that have waited for as long as they may."""
        for pending in self._too_late(now):
            delay = 0.0 if pending.due == inf else max(0.0, pending.due - now)
            pending.resolve(too_long(self._limits.name, pending.request, int(delay * 1_000_000)))
        if over := self._unanswered(now):
            self._traffic.fail(over, cannot(self._place, TimeoutError()))

    def _too_late(self, now: float) -> list[PendingAcquire]:
        late = []
        while self._deadlines and self._deadlines[0].moment <= now:
            for pending in heappop(self._deadlines).callers:
                pending.deadline = None
                if not pending.t:
                    late.append(pending)
            self._plan()
        return late

    def _unanswered(self, now: float) -> list[PendingAcquire]:
        """The callers that fail now without an answer. The others get a new `answer_by`."""
        if now < self.answer_by:
            return []
        over, self.answer_by = [], inf
        for pending in self._traffic.without_first_answer():
            max_sleep = pending.request.max_sleep
            is_queued = pending.deadline is not None
            if max_sleep is None or is_queued or pending.t or pending.future.done():
                continue
            answer_by = first_deadline(pending, max_sleep)
            if answer_by <= now:  # but not before the server has been silent for SILENCE seconds
                answer_by = now + SILENCE - self._traffic.seconds_without_reply(pending, now)
            if answer_by <= now:
                over.append(pending)
            else:
                self.answer_by = min(self.answer_by, answer_by)
        self._plan()
        return over


def first_deadline(pending: PendingAcquire, max_sleep: int) -> float:
    """The end of the wait for a first answer. `max_sleep=0` does not forbid a slow reply."""
    return pending.start + (max_sleep / 1_000_000 or REPLY_TIMEOUT)
