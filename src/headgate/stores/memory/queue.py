"""The store of one process: the gate under a lock, and who waits in front of it.

Here lives the home of the gate in memory: threads, several event loops and both protocols share one
line. Each waiter sleeps where it waits, until it is woken or until its own estimate; whoever looks
lets pass whoever is due, in order. There is no polling, no thread of the store's own, and nothing
here decides anything.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from headgate.forks import WAITING
from headgate.gate.compile import Declaration
from headgate.gate.concurrency import NEVER
from headgate.gate.gate import Grant
from headgate.permit import Permit, Refusal, start_holding
from headgate.stores.known import Known
from headgate.stores.loops import begin_in_order, check_blocking
from headgate.stores.memory.lock import Reentered
from headgate.stores.memory.steps import Steps
from headgate.stores.memory.waiters import (
    MovedWaiter,
    TaskWaiter,
    ThreadWaiter,
    Waiter,
    no_loop,
    place_here,
)
from headgate.stores.status import Status, snapshot

if TYPE_CHECKING:

    from headgate.gate.gate import Units
    from headgate.request import Request
    from headgate.stores.memory.fast_path import Place

FEWEST_QUEUES = 1024  # lines that are kept without looking for idle ones


class MemoryQueue(Known, Steps):
    """The queue of one name in this process, as limiters and permits see it."""

    __slots__ = ()

    # What a limiter asks for ----------------------------------------------------------------------

    async def enter_queue(self, request: Request) -> None:
        """Enter behind others, or as soon as the limits allow."""
        waiter = TaskWaiter(request, place_here())
        try:
            await self._wait(waiter)
            self._count(waiter)
        except BaseException:
            self._give_up(waiter)
            raise

    def enter_sync(self, request: Request) -> None:
        waiter = ThreadWaiter(request)
        try:
            self._wait_sync(waiter)
            self._count(waiter)
        except BaseException:
            self._give_up(waiter)
            raise

    def _count(self, waiter: Waiter) -> None:
        """Count who is inside and holds nothing."""
        if not waiter.holds:
            self._lock.hold(self._count_late, waiter)

    def take(self, request: Request) -> Permit | Refusal:
        """A permit now, or why not."""
        try:
            answer = self._lock.hold(self._take, request)
        except (
            Reentered
        ):  # the caller is a signal handler or a finalizer in the middle of this very queue
            return Refusal(0.0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def atake(self, request: Request) -> Permit | Refusal:
        if _get_running_loop() is None:
            raise no_loop()
        answer = self.take(request)
        if answer and self.starting:
            await begin_in_order(self.starting)
        return answer

    async def moved(self, place: Place, ticket: Any, request: Request) -> None:
        """The task of `place` has seen who it is now: it has its grant, or waits for it in the
        gate's queue.
        """
        if not isinstance(ticket, MovedWaiter):
            self.begun(ticket)
            return
        try:
            self._moved.pop(id(place), None)
            ticket.knows, ticket.request = True, request
            if ticket.grant is None:
                await self._turn(ticket)
            await self._begin(ticket)
            self._count(ticket)
        except BaseException:
            self._give_up(ticket)
            raise

    async def _wait(self, waiter: TaskWaiter) -> None:
        """Until the grant is there, and those that were granted before it have begun."""
        if not self._join(waiter):
            await self._turn(waiter)
        elif self.starting:
            self._lock.hold(self._send_off, waiter)
        await self._begin(waiter)

    async def _turn(self, waiter: TaskWaiter) -> None:
        closing, entry = waiter.request.closing, ref(waiter)
        try:
            closing.begin(entry)
            waiter.tell()
            self._check_fork(waiter)
            await waiter.sleep(self._clock, waiter.timeout(self._clock.now()), self.advance)
            while not self._look(waiter):
                await waiter.sleep(self._clock, waiter.timeout(self._clock.now()), self.advance)
        finally:
            closing.end(entry)

    async def _begin(self, waiter: Waiter) -> None:
        if waiter in self._gate.queue:
            # Another thread grants this waiter just now. `status` waits for that thread, which has
            # made the ticket by then.
            self.status()
        if waiter.ticket is not None:
            await begin_in_order(self.starting, waiter.ticket)
            self.begun(waiter.ticket)

    def _wait_sync(self, waiter: ThreadWaiter) -> None:
        if not self._join(waiter):
            endless = waiter.request.max_sleep is None
            check_blocking(
                self._lock,
                self._learning,
                lambda: (
                    endless
                    and self._lock.hold(self._next_at, None) >= NEVER
                    and waiter.grant is None
                ),
            )
            closing, entry = waiter.request.closing, ref(waiter)
            try:
                WAITING.add(waiter)
                closing.begin(entry)
                waiter.tell()
                self._check_fork(waiter)
                waiter.sleep(self._clock, waiter.timeout(self._clock.now()))
                while not self._look(waiter):
                    waiter.sleep(self._clock, waiter.timeout(self._clock.now()))
            finally:
                try:
                    closing.end(entry)
                finally:
                    WAITING.discard(waiter)

    async def acquire(self, request: Request) -> Permit:
        if _get_running_loop() is None:
            raise no_loop()
        permit = None if request.units else self._lock.hold(self._take_one, request)
        if permit is not None:
            return permit
        start = self._clock.now()
        waiter = TaskWaiter(request, place_here())
        try:
            await self._wait(waiter)
            permit = self._permit(waiter, start)
            if waiter.holds:
                start_holding(permit)  # the last step
        except BaseException:
            self._give_up(waiter)
            raise
        return permit

    def acquire_sync(self, request: Request) -> Permit:
        permit = None if request.units else self._lock.hold(self._take_one, request)
        if permit is not None:
            return permit
        start = self._clock.now()
        waiter = ThreadWaiter(request)
        try:
            self._wait_sync(waiter)
            permit = self._permit(waiter, start)
            if waiter.holds:
                start_holding(permit)  # the last step
        except BaseException:
            self._give_up(waiter)
            raise
        return permit

    def _permit(self, waiter: Waiter, start: int) -> Permit:
        """Not held yet: that is said in one step, when nothing can come between."""
        grant = cast(Grant, waiter.grant)
        return Permit(
            self, waiter.request.units, grant, (grant.t - start) / 1_000_000, waiter.epoch, None
        )

    def status(self, own: Declaration | None = None) -> Status:
        try:
            return self._lock.hold(self._status, own)
        except Reentered:  # the state lies between two steps: read a copy, and change nothing
            gate = snapshot(self._gate)
            return self._status_of(gate, Declaration(gate.rules))

    def follow(self, declared: Declaration) -> None:
        """An acquire declares its limits: the last declaration wins, unless an update has overruled
        it already.
        """
        if declared.program != self.declared.program:
            self._lock.bring(lambda: self._declare(declared))

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if no acquire has declared any."""
        if self._undeclared and declared.program != self.declared.program:
            self._lock.bring(lambda: self._suppose(declared))

    def update(self, declared: Declaration, former: Declaration | None = None) -> None:
        self._lock.bring(lambda: self._update(declared, former))

    def pause(self, time: int) -> None:
        self._lock.bring(lambda: self._pause(time))

    def resume(self) -> None:
        """End a pause: waiters go on in order, as far as the limits allow."""
        self._lock.bring(self._resume)

    def flush(self) -> None:
        """What is said in this process is done at once."""

    async def aflush(self) -> None:
        """What is said in this process is done at once."""

    def reset(self) -> None:
        """Forget what was counted; waiters for that go on."""
        self._lock.bring(self._reset)

    def drain(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        def drained() -> None:
            self._keep(asks=False)
            self._drained = self._drained or self._undeclared
            self._gate.drain(self._clock.now(), unit, limit, left, since)

        self._lock.bring(drained)

    # What the ways in and out ask for -------------------------------------------------------------

    def advance(self) -> None:
        """Let everybody in the crowd and in the queue have what is theirs."""
        self._lock.bring(self._advance)

    def put_back(self) -> None:
        """What somebody held who entered."""
        self._lock.bring(self._left)

    def _give_up(self, waiter: Waiter) -> None:
        if waiter.grant is not None or waiter in self._gate.queue:
            self._lock.bring(lambda: self._undo(waiter))

    def give_place_up(self, place: Place) -> None:
        self._lock.bring(lambda: self._undo_place(place))

    # What a permit asks for -----------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        if permit.held:
            self._lock.bring(lambda: self._release(permit))

    async def arelease(self, permit: Permit) -> bool:
        held = permit.held
        self.release(permit)
        return held

    # A finalizer calls it. That may run in the middle of any code, also of this queue's.
    abandon = release

    def settle(self, permit: Permit, extras: Units) -> None:
        def settled() -> None:
            self._then_advance()
            self._gate.settle(self._clock.now(), extras, permit.t)

        self._lock.bring(settled)
