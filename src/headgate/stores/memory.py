"""The store of one process: the gate under a lock, and who waits in front of it.

Here lives the home of the gate in memory: threads, several event loops and both protocols share one line. Each waiter sleeps
where it waits, until it is woken or until its own estimate; whoever looks lets pass whoever is due, in order. There is no
polling, no thread of the store's own, and nothing here decides anything.
"""

from __future__ import annotations

import os
import threading
from asyncio import Future
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, WeakValueDictionary

from headgate.clock import Clock, SystemClock
from headgate.gate.gate import Gate, Grant, Wait
from headgate.gate.rules import Declaration
from headgate.gate.slots import NEVER
from headgate.permit import Permit, Refusal
from headgate.request import Request
from headgate.stores.doors import HANDED, Crowd, pooled_door, pooled_exit, pooled_queue, shut, timed_door
from headgate.stores.refusals import never, queue_full, too_long
from headgate.stores.status import Status, status_of
from headgate.stores.waiters import TaskWaiter, ThreadWaiter, Waiter

if TYPE_CHECKING:
    from headgate.gate.gate import Units

LOOK_AGAIN = 10_000  # microseconds from one look to the next of a waiter whose estimate came too early
PLAIN = Request({})
FEWEST_LINES = 1024  # lines that are kept without looking for idle ones


class MemoryLine:
    """The queue of one name in this process."""

    __slots__ = (
        "__weakref__",
        "_abandoned",
        "_clock",
        "_crowd",
        "_epoch",
        "_gate",
        "_lock",
        "_loose",
        "_pool",
        "_pools",
        "_store",
        "declared",
        "enter",
        "enter_later",
        "leave",
        "name",
    )

    enter_later: Callable[[Request], Coroutine[Any, Any, None]]

    def __init__(self, store: MemoryStore, name: str, declared: Declaration) -> None:
        self.name = name
        self.declared = declared
        self._store = store
        self._clock = store.clock
        self._gate = Gate(declared.rules(), self._clock.now())
        self._loose = False  # the store has let go of this line because it was idle
        self._pool: list[None] = []  # permits that were left and are still counted as held: taken again without asking the gate
        self._crowd: Crowd = deque()  # who waits for concurrency alone and asks for nothing in particular: see doors.py
        self._pools = declared.timeless
        self._epoch = 0  # grows with every fork: what the parent holds is not the child's to release
        self._abandoned: deque[Permit] = deque()
        self._open(threading.Lock())

    def _open(self, lock: threading.Lock) -> None:
        """The ways in and out of who asks for nothing in particular: see doors.py."""
        self._lock = lock
        self.enter = timed_door(self._gate, lock, self._clock.now)
        self.leave, self.enter_later = self._leave, self._enter_later
        if self._pools:
            self.enter = pooled_door(self._gate, self._pool, self._crowd, self.enter)
            self.enter_later = pooled_queue(self, self._gate, self._pool, self._crowd)
            self.leave = pooled_exit(self, self._gate, self._pool, self._crowd)

    # What a limiter asks for ---------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self.declared.holds:
            with self._lock:
                self._gate.release({})
                self._advance()

    async def _enter_later(self, request: Request) -> None:
        await self.wait(request)

    def take(self, request: Request) -> Permit | Refusal:
        """A permit now, or why not."""
        with self._lock:
            self._keep()
            self._check_cost(request)
            self._advance()
            decision = self._gate.acquire(self._clock.now(), request, request.units, max_sleep=0)
            if isinstance(decision, Grant):
                return self._permit(request, decision, 0)
            return Refusal(max(0, decision.t - self._gate.t) / 1_000_000)

    async def atake(self, request: Request) -> Permit | Refusal:
        return self.take(request)

    async def wait(self, request: Request) -> Grant:
        """The grant of `request`, when its turn has come."""
        waiter = TaskWaiter(request, Future())
        if not self._join(waiter):
            await self.turn(waiter)
        return cast(Grant, waiter.grant)

    async def turn(self, waiter: TaskWaiter) -> None:
        try:
            await waiter.sleep(self._timeout(waiter))
            while not self._look(waiter):
                await waiter.sleep(self._timeout(waiter))
        except BaseException:
            self.give_up(waiter)
            raise

    def wait_sync(self, request: Request) -> Grant:
        waiter = ThreadWaiter(request)
        if not self._join(waiter):
            try:
                waiter.sleep(self._timeout(waiter))
                while not self._look(waiter):
                    waiter.sleep(self._timeout(waiter))
            except BaseException:
                self.give_up(waiter)
                raise
        return cast(Grant, waiter.grant)

    def _timeout(self, waiter: Waiter) -> float | None:
        """Seconds until a waiter looks by itself."""
        moment = min(waiter.look_at, waiter.deadline)
        return None if moment >= NEVER else max(0, moment - self._clock.now()) / 1_000_000

    enter_sync = wait_sync  # who enters needs no permit

    async def acquire(self, request: Request) -> Permit:
        start = self._clock.now()
        return self._permit(request, await self.wait(request), start)

    def acquire_sync(self, request: Request) -> Permit:
        start = self._clock.now()
        return self._permit(request, self.wait_sync(request), start)

    def status(self) -> Status:
        with self._lock:
            gate = self._gate
            self._advance()
            now = gate.clamp(self._clock.now())
            left = [rule.left(now) for rule in gate.rules]
            return status_of(self.name, gate.rules, left, len(gate.queue), self._next_entry() - now)

    async def astatus(self) -> Status:
        return self.status()

    def describe(self) -> str:
        return self.status().line()

    def follow(self, declared: Declaration) -> None:
        """The last declaration wins: whoever waits is queued again under the new limits."""
        with self._lock:
            if declared.program != self.declared.program:
                self._gather()
                self._empty_pool()
                self.declared = declared
                for waiter in cast("list[Waiter]", self._gate.follow(self._clock.now(), declared.rules())):
                    waiter.never = True
                    waiter.wake()
                self._pools = declared.timeless and not self._gate.over()  # after a cut nobody may pass on what is left (S1)
                self._open(self._lock)
                self._advance()

    # What the ways of a pooled line ask for ------------------------------------------------------------------------------

    def hand_over(self) -> bool:
        """Let the head of the gate's queue have what is left, if it asks for just that: no need to count it back and forth."""
        gate = self._gate
        with self._lock:
            self._gather()
            waiter = cast("Waiter | None", gate.pass_on()) if self._pools else None
            if waiter is None:
                return False
            waiter.grant = Grant(gate.clamp(self._clock.now()), gate.fence)
            if not waiter.wake():
                waiter.grant = None
            return waiter.grant is not None

    def advance(self) -> None:
        """Let everybody in the crowd and in the queue have what is theirs."""
        with self._lock:
            self._advance()

    def give(self, waiter: TaskWaiter) -> bool:
        """Hand a permit to one of the crowd that waits in another loop; false if it is not there any more."""
        with self._lock:
            waiter.grant = None if waiter.gone else HANDED
            if waiter.grant and not waiter.wake():
                waiter.grant = None
            return waiter.grant is not None

    # What a permit asks for ----------------------------------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        with self._lock:
            self._put_back(permit)
            self._advance()

    async def arelease(self, permit: Permit) -> bool:
        held = permit.held
        self.release(permit)
        return held

    def abandon(self, permit: Permit) -> None:
        """Release from a finalizer, which may run in the middle of anything, this line's own locked code included."""
        self._abandoned.append(permit)
        if self._lock.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self._lock.release()

    def settle(self, permit: Permit, extras: Units) -> None:
        with self._lock:
            self._gate.settle(self._clock.now(), extras, permit.t)
            self._advance()

    # Under the lock ------------------------------------------------------------------------------------------------------

    def _permit(self, request: Request, grant: Grant, start: int) -> Permit:
        waited = (grant.t - start) / 1_000_000 if start else 0.0
        return Permit(self, request.units, grant, waited, self._epoch, inf if self.declared.holds else None)

    def _put_back(self, permit: Permit) -> None:
        if permit.held and permit.key == self._epoch:
            self._gate.release(permit.units)
        permit.held = False

    def _check_cost(self, request: Request) -> None:
        """The limits may have changed since the request was checked (T7)."""
        if self._gate.never(self._gate.costs(request.units)):
            raise never(self.name, self.declared, request)

    def _keep(self) -> None:
        if self._loose:
            self._loose = False
            self._open(self._lock)
            self._store.keep(self)

    def _join(self, waiter: Waiter) -> bool:
        """Ask the gate; true when the grant is there at once."""
        with self._lock:
            self._keep()
            request, gate = waiter.request, self._gate
            if self._pools and gate.queue and request.plain:
                self._gather()
                gate.join(waiter, request.units, gate.usual)  # behind others, for as long as it takes
                if self._pool:
                    self._advance()
                return waiter.grant is not None
            self._check_cost(request)
            self._gather()
            self._empty_pool()
            now = self._clock.now()
            decision = gate.acquire(now, waiter, request.units, max_sleep=request.max_sleep, max_waiters=request.max_waiters)
            if isinstance(decision, Grant):
                waiter.grant = decision
                return True
            if not isinstance(decision, Wait):
                refused = queue_full if decision.full else too_long
                raise refused(self.name, request, decision.t - gate.t)
            if decision.t > gate.t:  # only the head looks at its very moment: those behind it are let pass by it, in order
                waiter.look_at = decision.t + (LOOK_AGAIN if decision.position else 0)
            if request.max_sleep is not None:
                waiter.deadline = gate.t + request.max_sleep
            if self._pool:  # somebody left since it was emptied, and may have seen no queue
                self._advance()
            else:
                self._arm_head()
            return waiter.grant is not None

    def _look(self, waiter: Waiter) -> bool:
        """Let pass whoever is due; true when this waiter has its grant, an error when it has waited long enough."""
        if waiter.grant is not None:
            return True
        with self._lock:
            self._advance()
            if waiter.grant is not None:
                return True
            gate = self._gate
            if waiter.never:
                raise never(self.name, self.declared, waiter.request)
            if gate.t >= waiter.deadline:
                raise too_long(self.name, waiter.request, gate.estimate(gate.costs(waiter.request.units)) - gate.t)
            if gate.t >= waiter.look_at:
                moment = gate.next_at()
                waiter.look_at = max(moment, gate.t + LOOK_AGAIN) if moment < NEVER else NEVER
            return False

    def give_up(self, waiter: Waiter) -> None:
        with self._lock:
            waiter.gone = True
            self._gather()
            if waiter.grant is not None:
                self._gate.cancel(self._clock.now(), waiter.request.units, waiter.grant.t)
            self._gate.leave(waiter)
            self._advance()

    def _advance(self) -> None:
        """Let pass whoever is due, wake them, and see to it that the new head looks in time."""
        gate = self._gate
        self._gather()
        self._empty_pool()
        while self._abandoned:
            self._put_back(self._abandoned.popleft())
        lost = True
        while gate.queue and lost:
            lost = False
            for caller, grant in gate.advance(self._clock.now()):
                waiter = cast(Waiter, caller)
                waiter.grant = grant
                if not waiter.wake():  # its loop is gone: the grant is for those behind it
                    waiter.grant = None
                    gate.cancel(gate.t, waiter.request.units, grant.t)
                    lost = True
        self._arm_head()

    def _gather(self) -> None:
        """Let the crowd wait in the gate's queue, with everybody else."""
        gate, crowd = self._gate, self._crowd
        if not crowd:
            return
        gate.queue[self] = gate.plain  # lest anybody sees neither a queue nor a crowd while they move
        moving = []
        while crowd:
            with suppress(IndexError):  # whoever leaves this moment takes the first, so they are taken from the end
                moving.append(crowd.pop())
        for waiter in reversed(moving):
            if not waiter.future.done():
                gate.join(waiter, PLAIN.units, gate.usual)
        del gate.queue[self]

    def _empty_pool(self) -> None:
        """Return what is in the pool to the gate, before it decides anything."""
        while self._pool:
            try:
                self._pool.pop()
            except IndexError:  # somebody entered with it
                return
            self._gate.release({})

    def _arm_head(self) -> None:
        gate = self._gate
        if gate.queue and not self._pools:
            head = cast(Waiter, next(iter(gate.queue)))
            moment = gate.next_at()
            if moment < head.look_at:
                head.look_at = moment
                head.wake()

    def _next_entry(self) -> int:
        """When one who comes now could pass."""
        gate = self._gate
        return gate.estimate(gate.usual) if gate.queue else gate.ready(gate.usual)

    def let_go(self) -> bool:
        """Become loose if forgetting this line would change nothing: nobody waits, nothing is held, no debt is open.

        A line that is busy this very moment is not idle; waiting for it here could wait for ever, since it may be asking the
        store to be kept.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._advance()
            self._loose = self._gate.idle_at() <= self._clock.now()
            if self._loose:
                self.enter, self.enter_later = shut, self._enter_later
            return self._loose
        finally:
            self._lock.release()

    def forked(self) -> None:
        """In the child of a fork: the parent's waiters and permits are the parent's, what the rates have counted stays."""
        self._epoch += 1
        self._pool.clear()
        self._crowd.clear()
        self._gate.orphan()
        self._open(threading.Lock())


class MemoryStore:
    """The lines of this process by name. Idle ones are forgotten, a line with a debt never is."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[str, MemoryLine] = WeakValueDictionary()
        self._kept: dict[str, MemoryLine] = {}
        self._most = FEWEST_LINES
        STORES.add(self)

    def line(self, name: str, declared: Declaration) -> MemoryLine:
        """The line of `name`; a new one, or the one that is there under the limits that were declared last."""
        with self._lock:
            line = self._known.get(name)
            if line is None:
                line = self._known[name] = self._kept[name] = MemoryLine(self, name, declared)
                self._sweep()
                return line
        line.follow(declared)
        return line

    def keep(self, line: MemoryLine) -> None:
        with self._lock:
            self._kept[line.name] = line

    def _sweep(self) -> None:
        """Let go of idle lines, once in so many that the work for each new line stays constant."""
        if len(self._kept) <= self._most:
            return
        for name, line in list(self._kept.items()):
            if line.let_go():
                del self._kept[name]
        self._most = max(FEWEST_LINES, 2 * len(self._kept))

    def forked(self) -> None:
        self._lock = threading.Lock()
        for line in list(self._known.values()):
            line.forked()


STORES: WeakSet[MemoryStore] = WeakSet()


def _after_fork() -> None:
    for store in list(STORES):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
