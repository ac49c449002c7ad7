"""The acquires of one queue in memory, from the call to the permit.

Each decision is a step of queue_state.py or wait_queue.py under the lock. A waiter sleeps in its
task or thread, until it is woken or until its own estimate: the store has no thread of its own.
Only a thread that blocks its own event loop also wakes at intervals.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import ref

from headgate.clock import Clock
from headgate.counts import Counts, note_grant, note_refusal, reason_of
from headgate.forks import WAITING, begin_wait, fork_error
from headgate.gate.concurrency import NEVER
from headgate.gate.gate import Grant
from headgate.permit import Permit, Refusal, start_holding
from headgate.stores.loops import LoopCheck, begin_in_order, check_blocking, no_loop
from headgate.stores.memory.local_waiters import PLAIN
from headgate.stores.memory.lock import Lock, Reentered
from headgate.stores.memory.queue_state import QueueState
from headgate.stores.memory.waiters import (
    MigratedWaiter,
    TaskWaiter,
    ThreadWaiter,
    Waiter,
    new_future,
)
from headgate.threads import CHECK

if TYPE_CHECKING:
    from asyncio import Future

    from headgate.request import Request

T = TypeVar("T")


class Acquires:
    """The part of `MemoryQueue` that acquires. `MemoryQueue` sets the attributes."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_lock",
        "_loop_check",
        "_state",
        "counts",
        "leave",
        "name",
    )

    name: str
    counts: Counts
    leave: Callable[[], None]  # of a block
    _clock: Clock
    _lock: Lock
    _loop_check: LoopCheck
    _state: QueueState

    def take(self, request: Request) -> Permit | Refusal:
        try:
            answer = self._lock.run(self._state.take, request)
        except Reentered:  # a signal handler or a finalizer has interrupted this very queue
            return Refusal(0.0)
        if isinstance(answer, Exception):
            note_refusal(self.counts, self.name, "never")
            raise answer
        if isinstance(answer, Permit):
            self.counts.passed += 1
            if request.units:
                self.counts.costs.grant(request.units)
        else:
            note_refusal(self.counts, self.name, "not_now")
        return answer

    async def atake(self, request: Request) -> Permit | Refusal:
        if _get_running_loop() is None:
            raise no_loop()
        answer = self.take(request)
        starting = self._state.waiting.starting
        if answer and starting:
            await begin_in_order(starting)
        return answer

    # Blocks ---------------------------------------------------------------------------------------

    async def enter_queue(self, request: Request) -> None:
        """Enter behind the waiters, or as soon as the limits allow."""
        await self._enter(TaskWaiter(request, new_future()), self._count_holder)

    def enter_sync(self, request: Request) -> None:
        self._enter_sync(ThreadWaiter(request), self._count_holder)

    async def continue_migrated(
        self, future: Future[Any], result: Any, request: Request, since: int
    ) -> None:
        """Continue the task of a local waiter, whose future has this result.

        `since`: when it came. 0: not known, so its wait counts from the migration.

        If `result` is a `MigratedWaiter`, its wait goes on in the gate's queue. Otherwise `result`
        is a marker (see `WaitQueue.starting`), and the task has its permit.
        """
        if not isinstance(result, MigratedWaiter):
            self._state.waiting.forget_marker(result)
            return
        try:
            self._state.waiting.local.migrated.pop(id(future), None)
            result.seen, result.request = True, request
            result.since = since or result.since
            if result.grant is None:
                await self._sleep(result)
            await self._begin(result)
            self._note_grant(result)
            self._count_holder(result)
        except BaseException as error:
            try:
                self._give_up(result)
            finally:  # see _give_up
                self._give_up(result)
            self._note_end(result, error)
            raise

    def _count_holder(self, waiter: Waiter) -> None:
        """Count a block that was granted when no limit counted holders.

        Limits that are declared during the block may count it (S1).
        """
        if not waiter.holds:
            self._lock.run(self._state.waiting.holders.count_late, waiter)

    # Permits --------------------------------------------------------------------------------------

    async def acquire(self, request: Request) -> Permit:
        if _get_running_loop() is None:
            raise no_loop()
        permit = None if request.units else self._lock.run(self._state.take_one, request)
        if permit is not None:
            self.counts.passed += 1
            return permit
        start = self._clock.now()
        waiter = TaskWaiter(request, new_future())
        return await self._enter(waiter, lambda waiter: self._permit(waiter, start))

    def acquire_sync(self, request: Request) -> Permit:
        permit = None if request.units else self._lock.run(self._state.take_one, request)
        if permit is not None:
            self.counts.passed += 1
            return permit
        start = self._clock.now()
        return self._enter_sync(ThreadWaiter(request), lambda waiter: self._permit(waiter, start))

    def _permit(self, waiter: Waiter, start: int) -> Permit:
        grant = cast(Grant, waiter.grant)
        waited = (grant.t - start) / 1_000_000
        permit = Permit(cast(Any, self), waiter.request.units, grant, waited, waiter.epoch, None)
        if waiter.holds:
            start_holding(permit)  # the last step
        return permit

    # Waiting --------------------------------------------------------------------------------------

    async def _enter(self, waiter: TaskWaiter, finish: Callable[[Waiter], T]) -> T:
        """Wait for the grant, and until those that were granted before have begun.

        `finish` is written in Python, not in C: no signal handler runs when it returns.
        """
        try:
            if not self._join(waiter):
                await self._sleep(waiter)
            elif self._state.waiting.starting:
                # It was granted at once, and tasks that were granted earlier have not run yet. Its
                # marker comes behind theirs.
                self._lock.run(self._state.waiting.wake_granted, waiter)
            await self._begin(waiter)
            self._note_grant(waiter)
            return finish(waiter)
        except BaseException as error:
            try:
                self._give_up(waiter)
            finally:  # see _give_up
                self._give_up(waiter)
            self._note_end(waiter, error)
            raise

    def _enter_sync(self, waiter: ThreadWaiter, finish: Callable[[Waiter], T]) -> T:
        try:
            if not self._join(waiter):
                self._sleep_sync(waiter)
            self._note_grant(waiter)
            return finish(waiter)
        except BaseException as error:
            try:
                self._give_up(waiter)
            finally:  # see _give_up
                self._give_up(waiter)
            self._note_end(waiter, error)
            raise

    def note_local(self, result: Any, since: int) -> None:
        """Count the grant of a local waiter. A migrated one is counted in the gate's queue."""
        if not isinstance(result, MigratedWaiter):
            waited = (self._clock.now() - since) / 1_000_000
            note_grant(self.counts, self.name, PLAIN, waited)

    def _note_grant(self, waiter: Waiter) -> None:
        """Count the grant before the permit is made. After that an exception could skip this."""
        waiter.noted, grant = True, cast(Grant, waiter.grant)
        waited = None if waiter.since is None else max(0, grant.t - waiter.since) / 1_000_000
        note_grant(self.counts, self.name, waiter.request, waited)

    def _note_end(self, waiter: Waiter, error: BaseException) -> None:
        if waiter.noted:
            return
        since, now = waiter.since, self._clock.now()
        waited = None if since is None else max(0, now - since) / 1_000_000
        note_refusal(self.counts, self.name, reason_of(error), waited)

    def _sleep_sync(self, waiter: ThreadWaiter) -> None:
        needs_release = self._needs_release(waiter)
        check_blocking(self._lock, self._loop_check, needs_release)
        closing, entry = waiter.request.closing, ref(waiter)  # see `Closing`
        try:
            begin_wait(waiter)
            closing.add_waiting(entry)
            waiter.call_on_wait()
            self._check_fork(waiter)
            while True:
                timeout = waiter.timeout(self._clock.now())
                if timeout is None and _get_running_loop() is not None:
                    timeout = CHECK  # a thread that blocks its loop checks whether its wait can end
                waiter.sleep(self._clock, timeout)
                if self._check(waiter):
                    break
                check_blocking(self._lock, self._loop_check, needs_release)
        finally:
            try:
                closing.discard_waiting(entry)
            finally:
                WAITING.discard(waiter)

    def _needs_release(self, waiter: ThreadWaiter) -> Callable[[], bool]:
        """A function that says whether only a release can end the wait."""
        endless = waiter.request.max_sleep is None
        next_at = self._state.waiting.next_at
        return lambda: endless and self._lock.run(next_at, None) >= NEVER and waiter.grant is None

    def _join(self, waiter: Waiter) -> bool:
        """Whether it was granted, and not queued."""
        refused = self._lock.run(self._state.join, waiter)
        if refused is not None:
            raise refused
        return waiter.grant is not None

    async def _sleep(self, waiter: TaskWaiter) -> None:
        closing, entry = waiter.request.closing, ref(waiter)
        try:
            closing.add_waiting(entry)
            waiter.call_on_wait()
            self._check_fork(waiter)
            while True:
                await waiter.sleep(self._clock, waiter.timeout(self._clock.now()), self.advance)
                if self._check(waiter):
                    break
        finally:
            closing.discard_waiting(entry)

    def _check(self, waiter: Waiter) -> bool:
        """Whether the waiter may go on after a sleep. Raises the error that ends its wait."""
        self._check_fork(waiter)
        if waiter.grant is not None:
            return True
        seen = self._lock.run(self._state.waiting.check, waiter)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def _check_fork(self, waiter: Waiter) -> None:
        """Raise RuntimeError in the child of a fork: the acquire goes on in the parent."""
        if waiter.epoch < self._state.waiting.first_epoch:
            raise fork_error(self.name)

    async def _begin(self, waiter: Waiter) -> None:
        """Let the tasks that were granted before this one run first."""
        waiting = self._state.waiting
        if waiter in waiting.gate.queue:
            # Another thread may be granting this waiter, and makes its marker under the lock. This
            # call changes nothing: it waits until that thread leaves the lock.
            with suppress(Reentered):
                self._lock.run(waiting.next_at, None)
        if waiter.marker is not None:
            await begin_in_order(self._state.waiting.starting, waiter.marker)
            self._state.waiting.forget_marker(waiter.marker)

    # Steps that need not answer -------------------------------------------------------------------

    def advance(self) -> None:
        self._lock.run_or_defer(self._state.waiting.advance)

    def release_one(self) -> None:
        self._lock.run_or_defer(self._state.waiting.release_one)

    def _give_up(self, waiter: Waiter) -> None:
        """Take the waiter out of the queue, and its grant back, if it has one.

        Each caller calls it twice: a signal handler can raise before its first line.
        """
        waiting = self._state.waiting
        if waiter.grant is not None or waiter in waiting.gate.queue:
            self._lock.run_or_defer(lambda: waiting.undo(waiter))

    def give_up_future(self, future: Future[Any]) -> None:
        waiting = self._state.waiting
        self._lock.run_or_defer(lambda: waiting.undo_future(future))
