"""The requests of one session. They leave together, in order, one call at a time."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from headgate.stores.redis.protocol.operations import Amend, Cancel, Leave, PauseWhole
from headgate.stores.redis.session.reservations import Reservations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.errors import StoreError
    from headgate.stores.redis.protocol.calls import Command
    from headgate.stores.redis.protocol.operations import Operation
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.whole_pause import WholePause

MOST = 1000  # acquires in one call, and other operations (S9, bounds)


class State(Enum):
    IDLE = "no call is in flight"
    SCHEDULED = "there is a call to be sent"
    IN_FLIGHT = "the server has not replied to the call"
    READING = "a reply is being read, and nothing is sent meanwhile"


IDLE, SCHEDULED, IN_FLIGHT, READING = State


class Sent(NamedTuple):
    """A call without a reply, and its requests."""

    command: Command
    lease: int  # of its limits, in microseconds
    at: float  # when it was made, on the monotonic clock
    acquires: list[PendingAcquire]
    operations: list[Operation]
    # How many waiters of this session are before its first acquire. -1: others may be, too.
    ahead: int
    outbox_grants: int  # `LocalHandoff.outbox_grants` when it was made
    expects_grant: bool  # it is one acquire, and most likely the reply is its grant


class Traffic:
    def __init__(self, whole: WholePause | None = None) -> None:
        self.state = IDLE
        # To be sent.
        self.acquires: list[PendingAcquire] = []
        self.operations: list[Operation] = []
        # The call without a reply. Unless it is in flight, it is sent again before any other call:
        # the server may have run it.
        self.sent: Sent | None = None
        # By number, in order. (A plain dict finds its first slowly after many deletions.)
        self.waiting: OrderedDict[int, PendingAcquire] = OrderedDict()
        self.abandoned: dict[int, PendingAcquire] = {}  # the server may still grant them
        # The next call ends the session on the server: no call can name all waiters that have left.
        self.leaving = False
        self.reserved = Reservations(whole)
        self.again = False  # another call follows when the reply is read
        # LoopSession takes these two. The last call failed, so what is owed must be sent again:
        self.failure: StoreError | None = None
        # Callers failed, so a log line says that the server is away:
        self.outage: StoreError | None = None
        self.pause_news: tuple[int, int] | None = None  # the server's time, and the pause left

    def schedule(self) -> None:
        if self.state is IDLE:
            self.state = SCHEDULED
        elif self.state is READING:
            self.again = True

    def run(self, operations: Iterable[Operation]) -> None:
        self.operations += operations
        self.schedule()

    def send_operations(self) -> None:
        if self.owes:
            self.schedule()

    def is_amending(self, numbers: Iterable[int]) -> bool:
        """Whether the call without a reply changes the cost of one of these waiters. Until the
        reply, the session does not know whether the waiter was granted at the old cost.
        """
        call = self.sent
        amends = [each for each in call.operations if isinstance(each, Amend)] if call else []
        return bool(amends) and not {each.number for each in amends}.isdisjoint(numbers)

    def stop(self) -> Sent | None:
        """Wait for no reply any more. Return the call without a reply, which must be repeated."""
        self.state = IDLE
        return self.sent

    @property
    def owes(self) -> bool:
        """Whether a call is to be sent even without new acquires. One in flight does not count."""
        repeats = self.sent is not None and self.state is not IN_FLIGHT
        return bool(self.operations or repeats or self.leaving)

    @property
    def idle(self) -> bool:
        pending = self.acquires or self.sent or self.waiting or self.reserved.sleepers
        return not (pending or self.owes or self.state is SCHEDULED)

    def put_back(
        self, acquires: list[PendingAcquire], operations: Sequence[Operation] = ()
    ) -> None:
        """Send these with the next call: the call that had them was not made, or did nothing.

        An earlier server may have granted some of them, and notified the session. They are not
        sent again.
        """
        for pending in acquires:
            self.waiting.pop(pending.number, None)
        self.acquires[:0] = [pending for pending in acquires if not pending.t]
        # `NextCall` makes these anew.
        anew = Amend, Leave, PauseWhole
        self.operations[:0] = [each for each in operations if not isinstance(each, anew)]

    def put_off(self) -> None:
        """An exception came before the call was made or written: it is still to be sent."""
        self.stop()
        self.schedule()

    def undelivered(self) -> list[Operation]:
        return [*(self.sent.operations if self.sent else ()), *self.operations]

    @property
    def must_deliver(self) -> bool:
        """Whether an operation has no answer yet, or the server may grant to a caller that left.

        The call in flight counts.
        """
        sent = self.sent.acquires if self.sent else ()
        one_left = any(pending.future.done() for pending in sent)
        return bool(self.leaving or one_left or self.undelivered())

    def not_granted(self) -> list[PendingAcquire]:
        """The callers that wait for an answer, or for their turn."""
        return [*self.waiting.values(), *self.acquires]

    def unfinished(self) -> list[PendingAcquire]:
        """The callers that wait, and those that sleep until their moment."""
        return [*self.not_granted(), *(pending for _, pending, _ in self.reserved.sleepers)]

    def without_first_answer(self) -> list[PendingAcquire]:
        return [*(self.sent.acquires if self.sent else ()), *self.acquires]

    def seconds_without_reply(self, pending: PendingAcquire, now: float) -> float:
        """How long the server has been silent while `pending` waited. 0.0: no call is in flight.

        This counts from the sending of that call, or from the later beginning of `pending`.
        """
        sent = self.sent if self.state is IN_FLIGHT else None
        return now - max(sent.at, pending.start) if sent else 0.0

    def give_up(self, pending: PendingAcquire) -> None:
        """No caller wants this acquire any more.

        If it is not sent yet, it never is. If its reply is on the way, that reply decides.
        """
        in_flight = self.sent.acquires if self.sent and self.state is IN_FLIGHT else ()
        # It is granted, or an earlier call has queued it.
        if pending.t or (pending.number in self.waiting and pending not in in_flight):
            self.withdraw(pending)

    def withdraw(self, pending: PendingAcquire) -> None:
        self.waiting.pop(pending.number, None)
        self.cancel(pending)
        self.schedule()

    def cancel(self, pending: PendingAcquire) -> None:
        """Leave the queue, or undo the grant. A second cancel of one acquire changes the first."""
        if pending.cancel is not None:
            pending.cancel.caller, pending.cancel.t = pending.caller, pending.t
            return
        pending.cancel = Cancel(pending.caller, pending.t)
        self.operations.append(pending.cancel)
        if not pending.t:
            self.abandoned[pending.number] = pending

    def cancel_all(self, waiting: dict[int, PendingAcquire]) -> None:
        """Cancel one by one, or end the whole session if there are too many for one call."""
        if len(waiting) > MOST:
            self.abandoned.update(waiting)
            self.leaving = True
            return
        for pending in waiting.values():
            self.cancel(pending)

    def forget_abandoned(self) -> None:
        """Keep only those whose cancellation is unsent."""
        if not self.leaving:
            unsent, abandoned = set(self.operations), self.abandoned.items()
            self.abandoned = {number: each for number, each in abandoned if each.cancel in unsent}

    def fail(self, acquires: Iterable[PendingAcquire], error: StoreError) -> None:
        failed = [pending for pending in acquires if not pending.future.done()]
        for pending in failed:
            pending.resolve(error)
        if any(pending.request.raises for pending in failed):
            self.outage = error
