"""The waiting acquires of one queue in memory: joining, granting, waking, giving up, releasing.

Nothing here sleeps. Each step runs under the queue's lock. It takes effect whole or not at all,
whatever exception a signal handler raises in it: see lock.py. Its last assignment is the one that
counts, and `repair` restores the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from headgate.gate.concurrency import NEVER
from headgate.gate.gate import Gate, Grant, Refuse, Wait
from headgate.stores.memory.holders import Holders
from headgate.stores.memory.local_waiters import LocalWaiters
from headgate.stores.memory.lock import Lock
from headgate.stores.memory.waiters import TaskWaiter, Waiter
from headgate.stores.refusals import never, queue_full, too_long
from headgate.waiting import queued_at

if TYPE_CHECKING:
    from asyncio import Future

    from headgate.clock import Clock
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units
    from headgate.permit import Permit

# An estimate may come too early. Its waiter then checks again after so many microseconds.
RECHECK = 10_000


class WaitQueue:
    """The gate of one name, its waiters and its holders."""

    __slots__ = (
        "_clock",
        "_lock",
        "_resume_pooling",
        "declared",
        "first_epoch",
        "gate",
        "holders",
        "local",
        "name",
        "pooling",
        "starting",
    )

    def __init__(
        self,
        name: str,
        declared: Declaration,
        clock: Clock,
        lock: Lock,
        resume_pooling: Callable[[], None],
    ) -> None:
        self.name = name
        self.declared = declared
        self._clock, self._lock = clock, lock
        self._resume_pooling = resume_pooling  # let released permits stay in the pool, if they may
        self.gate = Gate(declared.rules(), clock.now())
        self.holders = Holders(self.gate)
        self.local = LocalWaiters(self.gate, clock)
        # A marker of each task that was granted its permit and has not run yet, in their order.
        self.starting: deque[object] = deque()
        self.pooling = False  # whether a released permit stays in the pool
        self.first_epoch = 0  # of this process; acquires of an earlier one go on in the parent

    # Joining --------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> Exception | None:
        """Grant the acquire, or queue it. Returns the error of a refusal."""
        waiter.epoch = self.local.epoch
        request, gate = waiter.request, self.gate
        self.local.migrate()
        self._drop_closed()
        if self.pooling and gate.queue and request.plain:
            # It asks for one permit, waits for as long as it takes, and others wait before it.
            gate.join(waiter, request.units, gate.rules.usual)
            waiter.since = self._clock.now()  # `gate.t` may be old
            self._note_loop(waiter)
            if self.holders.pool:
                self.advance()
            return None
        # The limits may have changed meanwhile (T7).
        if gate.rules.never(gate.rules.costs(request.units)):
            return never(self.name, self.declared, request)
        self.holders.empty_pool()
        decision = self.holders.all_or_nothing(self._decide, waiter)
        if isinstance(decision, Refuse):
            delay = decision.t - gate.t
            return (
                queue_full(self.name, request, delay, len(gate.queue))
                if decision.full
                else too_long(self.name, request, delay)
            )
        if isinstance(decision, Wait):
            self._note_wait(waiter, decision)
        return None

    def _decide(self, waiter: Waiter) -> Grant | Wait | Refuse:
        request, now = waiter.request, self._clock.now()
        decision = self.gate.acquire(
            now, waiter, request.units, max_sleep=request.max_sleep, max_waiters=request.max_waiters
        )
        if isinstance(decision, Grant):
            self._note_grant(waiter, decision)
        return decision

    def _note_grant(self, waiter: Waiter, grant: Grant) -> None:
        # Not `declared.holds`: `declared` lags behind an update that an exception interrupts.
        waiter.holds = bool(self.gate.rules.holding)
        if waiter.holds:
            self.holders.add(waiter.request.units)
        waiter.grant = grant

    def _note_wait(self, waiter: Waiter, wait: Wait) -> None:
        request, gate = waiter.request, self.gate
        waiter.since = gate.t
        self._note_loop(waiter)
        if request.on_wait is not None:
            waiter.waiting = queued_at(wait.position, wait.t - gate.t)
        # Only the head wakes at its exact moment. It then grants to those behind it, in order.
        if wait.t > gate.t:
            waiter.check_at = wait.t + (RECHECK if wait.position else 0)
        if request.max_sleep is not None:
            waiter.deadline = gate.t + request.max_sleep
        if self.holders.pool:
            # A permit came into the pool just now. Its holder may not have seen this waiter.
            self.advance()
        else:
            self._schedule_head()

    def _note_loop(self, waiter: Waiter) -> None:
        if isinstance(waiter, TaskWaiter):
            self.local.loops.add(waiter.future.get_loop())

    def check(self, waiter: Waiter) -> bool | Exception:
        """Whether the waiter may go on, or the error that ends its wait."""
        gate = self.gate
        first = next(iter(gate.queue), None) is waiter
        self.advance()
        if waiter.grant is not None:
            # If others were before it, it sleeps once more, so that their tasks run first. This
            # sleep is short: `advance` has woken it.
            return first
        if waiter.refused is not None:
            return waiter.refused
        if gate.t >= waiter.deadline:
            t = gate.estimate(gate.rules.costs(waiter.request.units))
            return too_long(self.name, waiter.request, t - gate.t)
        if gate.t >= waiter.check_at:
            moment = gate.next_at()
            waiter.check_at = max(moment, gate.t + RECHECK) if moment < NEVER else NEVER
        return False

    # Granting -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Grant to the waiters that are due, wake them, and have the new head look in time."""
        self.local.migrate()
        self._drop_closed()
        self.holders.empty_pool()
        if not self.pooling:
            self._resume_pooling()  # the held permits may fit the limits by now
        queue = self.gate.queue
        while queue:
            waiter = cast(Waiter, next(iter(queue)))
            if waiter.request.estimate is not None:
                self._estimate_again(waiter)
            if waiter.grant is None and not self.holders.all_or_nothing(self._grant, waiter):
                break
            self.wake_granted(waiter)
        self._schedule_head()

    def advance_later(self) -> None:
        """Advance after the present step. After an exception, both may run again."""
        # Without waiters, `advance` can still let released permits stay in the pool again.
        if self.local.futures or self.gate.queue or (not self.pooling and self.declared.timeless):
            self._lock.deferred.append((self._lock, self.advance))

    def _estimate_again(self, waiter: Waiter) -> None:
        """Let the head ask for its present cost (`Request.estimate`), unless it has its grant."""
        if waiter.grant is None:
            waiter.request = request = waiter.request.renewed()
            if self.gate.queue[waiter][0] is not request.units:
                self.gate.amend(waiter, request.units, self.gate.rules.costs(request.units))

    def _grant(self, waiter: Waiter) -> bool:
        gate = self.gate
        now, (_, costs) = gate.clamp(self._clock.now()), gate.queue[waiter]
        t = gate.ready(costs)
        if t > now:
            return False
        self._note_grant(waiter, gate.take(costs, t))
        return True

    def wake_granted(self, waiter: Waiter) -> None:
        """Wake a waiter that has its grant, and only then take it out of the queue."""
        if isinstance(waiter, TaskWaiter) and waiter.marker is None:
            waiter.marker = object()
            self.starting.append(waiter.marker)
        if not waiter.wake():  # its loop is gone, and its grant is for those behind it
            self.forget_marker(waiter.marker)
            self.holders.all_or_nothing(self._take_back, waiter)
        self.gate.leave(waiter)

    def forget_marker(self, marker: object) -> None:
        """The task with this marker runs, or never will."""
        if marker in self.starting:
            self.starting.remove(marker)

    def _schedule_head(self) -> None:
        gate = self.gate
        if gate.queue and not self.pooling:
            head = cast(Waiter, next(iter(gate.queue)))
            moment = gate.next_at()
            if moment < head.check_at:
                # In this order: after an interrupt between them, the next step wakes it again.
                head.wake()
                head.check_at = moment

    def next_at(self, _: None) -> int:  # `Lock.run` passes an argument
        return self.gate.next_at()

    # Releasing ------------------------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        if permit.held and permit.key == self.local.epoch:  # `key` is the epoch of its grant
            self.advance_later()
            self.holders.give_back(permit.units)
        permit.held = False

    def settle(self, permit: Permit, extras: Units) -> None:
        self.advance_later()
        self.gate.settle(self._clock.now(), extras, permit.t)

    def release_one(self) -> None:
        """Return the permit of a block."""
        self.advance_later()
        self.holders.give_back({})

    def hand_to_head(self) -> None:
        """Hand a block's permit, which stays counted, to the head if it asks for one permit."""
        gate = self.gate
        self.local.migrate()
        self.advance_later()  # it also wakes the head
        waiter = cast("Waiter | None", next(iter(gate.queue), None)) if self.pooling else None
        # `rules.plain`: the entry of each acquire of one permit.
        if waiter is None or waiter.grant is not None or gate.queue[waiter] is not gate.rules.plain:
            self.holders.give_back({})
            return
        gate.fence += 1
        waiter.holds = True
        waiter.grant = Grant(gate.clamp(self._clock.now()), gate.fence)

    # Giving up ------------------------------------------------------------------------------------

    def undo(self, waiter: Waiter) -> None:
        """Take a waiter out of the queue, and its grant back."""
        if waiter.epoch < self.first_epoch:
            return
        self.local.migrate()
        self.advance_later()
        self.gate.leave(waiter)
        self.forget_marker(waiter.marker)
        self.holders.all_or_nothing(self._take_back, waiter)

    def undo_future(self, future: Future[Any]) -> None:
        """The same for a local waiter, which may have migrated."""
        self.local.migrate()
        waiter = self.local.migrated.get(id(future))
        if waiter is not None:
            self.undo(waiter)
            self.local.migrated.pop(id(future), None)
        elif future.done() and not future.cancelled() and future.exception() is None:
            # A leaving caller has handed its permit to this task: see fast_path.py.
            marker = future.result()
            if marker in self.starting:
                self.release_one()
                self.starting.remove(marker)

    def _take_back(self, waiter: Waiter) -> None:
        if waiter.grant is not None:
            units = waiter.request.units
            if not waiter.holds:
                # It was not counted, but the next lines take it off the counts.
                self.holders.add_late(units)
            self.gate.cancel(self._clock.now(), units, waiter.grant.t)
            self.holders.remove(units)
            waiter.grant = None

    def _drop_closed(self) -> None:
        """Take out the waiters of closed event loops. The queue would keep their tasks alive."""
        closed = self.local.loops.closed()
        if not closed:
            return
        for waiter in list(self.gate.queue):
            if (
                isinstance(waiter, TaskWaiter)
                and waiter.grant is None
                and waiter.future.get_loop() in closed
            ):
                self.local.migrated.pop(id(waiter.future), None)
                self.gate.leave(waiter)
        self.local.loops.forget(closed)
        self.advance()  # those behind them may be due

    # After an exception, and after a fork ---------------------------------------------------------

    def repair(self) -> None:
        self.local.repair()
        self.local.migrate()
        self.gate.requeue()
        self.holders.count_again()

    def forget(self) -> None:
        """In the child of a fork: waiters and held permits belong to the parent."""
        self.local.epoch += 1
        self.first_epoch = self.local.epoch
        # Code without the lock may go on with the old deque. So that one is emptied and replaced.
        self.starting.clear()
        self.starting = deque()
        self.local.forget()
        self.gate.queue.clear()
        self.gate.requeue()
        self.holders.forget()
