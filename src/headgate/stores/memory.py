"""The store of one process: the gate under a lock, and who waits in front of it.

Here lives the home of the gate in memory: threads, several event loops and both protocols share one line. Each waiter sleeps
where it waits, until it is woken or until its own estimate; whoever looks lets pass whoever is due, in order. There is no
polling, no thread of the store's own, and nothing here decides anything.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, WeakValueDictionary

from headgate import clock as clocks
from headgate.gate.gate import Gate, Grant, Wait
from headgate.gate.rules import Declaration
from headgate.gate.slots import NEVER
from headgate.permit import Permit, Refusal
from headgate.request import Request
from headgate.stores.declarations import Declarations, warn_of_parts
from headgate.stores.doors import Crowd, Place, pooled_door, pooled_exit, pooled_queue, shut, timed_door, timed_exit
from headgate.stores.holders import Holders
from headgate.stores.lock import Lock
from headgate.stores.refusals import never, queue_full, too_long
from headgate.stores.status import Status, status_of
from headgate.stores.waiters import MovedWaiter, TaskWaiter, ThreadWaiter, Waiter, place_here
from headgate.waiting import queued_at, seconds_of

if TYPE_CHECKING:
    from headgate.gate.gate import Units

LOOK_AGAIN = 10_000  # microseconds from one look to the next of a waiter whose estimate came too early
PLAIN = Request({})
HANDED = Grant(0, 0)  # from hand to hand: the gate was not asked
FEWEST_LINES = 1024  # lines that are kept without looking for idle ones


class MemoryLine:
    """The queue of one name in this process."""

    __slots__ = (
        *("__weakref__", "_clock", "_crowd", "_epoch", "_gate", "_gone", "_holders", "_inherits", "_lock", "_loose"),
        *("_moved", "_pool", "_pools", "_said", "_shut", "_store", "declared", "enter", "enter_later", "leave", "name"),
    )

    enter_later: Callable[[Request], Coroutine[Any, Any, None]]

    def __init__(self, store: MemoryStore, name: str, declared: Declaration) -> None:
        self.name = name
        self.declared = declared
        self._said = Declarations(declared.program)
        self._store = store
        self._clock = store.clock
        self._gate = Gate(declared.rules(), self._clock.now())
        self._loose = False  # the store has let go of this line because it was idle
        self._shut = False  # for that reason, or in a pause, nobody passes by the doors
        self._pool: list[None] = []  # permits that were left and are still counted as held: taken again without asking the gate
        self._crowd: Crowd = deque()  # who waits for concurrency alone and asks for nothing in particular: see doors.py
        self._moved: dict[int, MovedWaiter] = {}  # by id of their place: whom it has become, until its task sees it
        self._gone: WeakSet[Place] = WeakSet()  # places that were given up while somebody had them in hand
        self._holders = Holders(self._gate)
        self._epoch = 0  # grows with every fork: what the parent holds is not the child's to release
        self._inherits = False  # somebody was inside at the fork, and may leave in the child too
        self._lock = Lock(threading.Lock())
        self._open()

    def _open(self) -> None:
        """The ways in and out of who asks for nothing in particular: see doors.py."""
        gate, pool, crowd = self._gate, self._pool, self._crowd
        inside = None if self._holders.counted else self._holders.inside
        self._pools = self._may_pool()
        self._shut = self._loose or gate.paused()
        self.enter = shut if self._shut else timed_door(gate, self._lock, self._clock.now, inside)
        self.leave, self.enter_later = self.put_back, self.queue
        if self._pools:
            self.enter = pooled_door(gate, pool, crowd, self.enter)
            self.enter_later = pooled_queue(self, gate, pool, crowd)
            self.leave = pooled_exit(self, gate, pool, crowd)
        elif inside is not None:
            self.leave = timed_exit(self, inside)

    def _may_pool(self) -> bool:
        """After a cut nobody may pass on what is left (S1), nor after a fork what was the parent's, nor anything in a pause."""
        return self.declared.timeless and not (self._inherits or self._gate.over() or self._gate.paused())

    # What a limiter asks for ---------------------------------------------------------------------------------------------

    async def queue(self, request: Request) -> None:
        """Enter behind others, or as soon as the limits allow."""
        self.entered(await self.wait(request))

    def enter_sync(self, request: Request) -> None:
        self.entered(self.wait_sync(request))

    def entered(self, waiter: Waiter) -> None:
        """Count who is inside and holds nothing."""
        if not waiter.holds:
            with self._lock:
                self._holders.add_late({})

    def take(self, request: Request) -> Permit | Refusal:
        """A permit now, or why not."""
        permit = self._at_once(request)
        if permit is not None:
            return permit
        with self._lock:
            self._keep()
            self._check_cost(request)
            self._advance()
            decision = self._gate.acquire(self._clock.now(), request, request.units, max_sleep=0)
            if isinstance(decision, Grant):
                return self._permit_now(request, decision)
            return Refusal(seconds_of(decision.t - self._gate.t))

    async def atake(self, request: Request) -> Permit | Refusal:
        return self.take(request)

    async def wait(self, request: Request) -> Waiter:
        """With the grant of `request`, when its turn has come."""
        waiter = TaskWaiter(request, place_here())
        if not self._join(waiter):
            await self.turn(waiter)
        return waiter

    async def moved(self, place: Place, waiter: MovedWaiter) -> None:
        """The task of `place` has seen who it is now: it has its grant, or waits for it in the gate's queue."""
        with self._lock:
            self._moved.pop(id(place), None)
            waiter.knows = True
        if waiter.grant is None:
            await self.turn(waiter)
        self.entered(waiter)

    async def turn(self, waiter: TaskWaiter) -> None:
        try:
            waiter.tell()
            await waiter.sleep(self._clock, waiter.timeout(self._clock.now()), self.advance)
            while not self._look(waiter):
                await waiter.sleep(self._clock, waiter.timeout(self._clock.now()), self.advance)
        except BaseException:
            self.give_up(waiter)
            raise

    def wait_sync(self, request: Request) -> Waiter:
        waiter = ThreadWaiter(request)
        if not self._join(waiter):
            try:
                waiter.tell()
                waiter.sleep(self._clock, waiter.timeout(self._clock.now()))
                while not self._look(waiter):
                    waiter.sleep(self._clock, waiter.timeout(self._clock.now()))
            except BaseException:
                self.give_up(waiter)
                raise
        return waiter

    def _at_once(self, request: Request) -> Permit | None:
        """For who asks for one of each and comes behind nobody: most do."""
        if request.units:
            return None
        with self._lock:
            self._keep()
            if self._crowd or self._gate.queue:
                return None
            self._empty_pool()
            grant = self._gate.at_once(self._clock.now())
            return None if grant is None else self._permit_now(request, grant)

    async def acquire(self, request: Request) -> Permit:
        permit = self._at_once(request)
        if permit is not None:
            return permit
        start = self._clock.now()
        waiter = await self.wait(request)
        return self._permit(request, cast(Grant, waiter.grant), start, waiter.holds)

    def acquire_sync(self, request: Request) -> Permit:
        permit = self._at_once(request)
        if permit is not None:
            return permit
        start = self._clock.now()
        waiter = self.wait_sync(request)
        return self._permit(request, cast(Grant, waiter.grant), start, waiter.holds)

    def status(self) -> Status:
        with self._lock:
            self._advance()
            now = (gate := self._gate).clamp(self._clock.now())
            left = [rule.left(now) for rule in gate.rules]
            numbers = len(gate.queue), gate.entry_at() - now, gate.pause_left()
            return status_of(self.name, self.declared, gate.rules, left, *numbers)

    async def astatus(self) -> Status:
        return self.status()

    def describe(self) -> str:
        return self.status().line()

    def follow(self, declared: Declaration) -> None:
        """The last declaration wins, unless an update has overruled it already."""
        with self._lock:
            program, present = declared.program, self.declared.program
            if program == present or self._said.overruled(program, present):
                return
            self._keep()
            comes_again = self._said.declare(program, self._clock.now())
            self._follow(declared)
        if comes_again:
            warn_of_parts(self.name, program, present)

    def update(self, declared: Declaration) -> None:
        with self._lock:
            self._keep()
            self._said.update(declared.program)
            if declared.program != self.declared.program:
                self._follow(declared)

    async def aupdate(self, declared: Declaration) -> None:
        self.update(declared)

    def pause(self, time: int) -> None:
        with self._lock:
            self._keep()
            self._gather()
            self._empty_pool()
            self._gate.pause(self._clock.now(), time)
            self._gate.rules = (*self._gate.rules,)  # as in let_go
            self._open()

    async def apause(self, time: int) -> None:
        self.pause(time)

    def resume(self) -> None:
        """End a pause: waiters go on in order, as far as the limits allow."""
        with self._lock:
            self._gate.resume(self._clock.now())
            self._open()
            self._advance()

    async def aresume(self) -> None:
        self.resume()

    def reset(self) -> None:
        """Forget what was counted; waiters for that go on."""
        with self._lock:
            self._gate.reset(self._clock.now())
            self._advance()

    async def areset(self) -> None:
        self.reset()

    def drain(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        with self._lock:
            self._keep()
            self._gate.drain(self._clock.now(), unit, limit, left, since)

    # What the ways in and out ask for ------------------------------------------------------------------------------------

    def hand_over(self) -> bool:
        """Let the head of the gate's queue have what is left, if it asks for just that: no need to count it back and forth."""
        gate = self._gate
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._gather()
            waiter = cast("Waiter | None", gate.pass_on()) if self._pools else None
            return waiter is not None and self._grant(waiter, Grant(gate.clamp(self._clock.now()), gate.fence), True)
        finally:
            self._lock.release()
            self._lock.see_to_it()

    def advance(self) -> None:
        """Let everybody in the crowd and in the queue have what is theirs."""
        self._lock.bring(self._advance)

    def give(self, place: Place) -> None:
        """Hand a permit to one of the crowd that waits in another loop, or to those behind it if it is not there any more."""

        def given() -> None:
            gone = place.done() or place in self._gone
            self._gone.discard(place)
            if gone or not self._grant(self._move(place), HANDED, True):
                self._left()

        self._lock.bring(given)

    def put_back(self) -> None:
        """What somebody held who entered."""
        self._lock.bring(self._left)

    def give_up(self, waiter: Waiter) -> None:
        self._lock.bring(lambda: self._undo(waiter))

    def give_place_up(self, place: Place) -> None:
        self._lock.bring(lambda: self._undo_place(place))

    # What a permit asks for ----------------------------------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        self._lock.bring(lambda: self._release(permit))

    async def arelease(self, permit: Permit) -> bool:
        held = permit.held
        self.release(permit)
        return held

    abandon = release  # from a finalizer, which may run in the middle of anything, this line's own locked code included

    def settle(self, permit: Permit, extras: Units) -> None:
        def settled() -> None:
            self._gate.settle(self._clock.now(), extras, permit.t)
            self._advance()

        self._lock.bring(settled)

    # Under the lock ------------------------------------------------------------------------------------------------------

    def _permit_now(self, request: Request, grant: Grant) -> Permit:
        if self.declared.holds:
            self._holders.add(request.units)
        return self._permit(request, grant, 0, self.declared.holds)

    def _permit(self, request: Request, grant: Grant, start: int, holds: bool) -> Permit:
        waited = (grant.t - start) / 1_000_000 if start else 0.0
        return Permit(self, request.units, grant, waited, self._epoch, inf if holds else None)

    def _grant(self, waiter: Waiter, grant: Grant, holds: bool) -> bool:
        """False when the waiter is not there any more; nor is its grant then."""
        waiter.grant, waiter.holds = grant, holds
        if not waiter.wake():  # its loop is gone
            waiter.grant = None
        return waiter.grant is not None

    def _release(self, permit: Permit) -> None:
        if permit.held and permit.key == self._epoch:
            self._put_back(permit.units)
        permit.held = False
        if self._crowd or self._gate.queue:
            self._advance()

    def _left(self) -> None:
        self._put_back({})
        if self._crowd or self._gate.queue:
            self._advance()

    def _put_back(self, units: Units) -> None:
        self._gate.release(units)
        self._holders.remove(units)
        if not self._pools and self._may_pool():
            self._open()  # enough are gone since the cut

    def _move(self, place: Place) -> MovedWaiter:
        waiter = self._moved[id(place)] = MovedWaiter(PLAIN, place)
        return waiter

    def _undo_place(self, place: Place) -> None:
        self._gather()
        waiter = self._moved.pop(id(place), None)
        if waiter is not None:
            self._undo(waiter)
        elif not place.done():
            self._gone.add(place)
        elif not place.cancelled():
            self._left()

    def _undo(self, waiter: Waiter) -> None:
        """Take a waiter out, and what it was granted back."""
        self._gather()
        if waiter.grant is not None:
            units = waiter.request.units
            if not waiter.holds:
                self._holders.add_late(units)  # the limits may have changed since the grant
            self._gate.cancel(self._clock.now(), units, waiter.grant.t)
            self._holders.remove(units)
        self._gate.leave(waiter)
        self._advance()

    def _follow(self, declared: Declaration) -> None:
        """Whoever waits is queued again under the new limits."""
        self._gather()
        self._empty_pool()
        inside = self._holders.take_out()
        self.declared = declared
        for waiter in cast("list[Waiter]", self._gate.follow(self._clock.now(), declared.rules())):
            waiter.refused = never(self.name, declared, waiter.request)
            waiter.wake()
        self._holders.put_in(inside)
        self._open()
        self._advance()

    def _check_cost(self, request: Request) -> None:
        """The limits may have changed since the request was checked (T7)."""
        if self._gate.never(self._gate.costs(request.units)):
            raise never(self.name, self.declared, request)

    def _keep(self) -> None:
        if self._shut:
            if self._loose:
                self._loose = False
                self._store.keep(self)
            self._gate.clamp(self._clock.now())
            self._open()

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
                waiter.grant, waiter.holds = decision, self.declared.holds
                if waiter.holds:
                    self._holders.add(request.units)
                return True
            if not isinstance(decision, Wait):
                if decision.full:
                    raise queue_full(self.name, request, decision.t - gate.t, len(gate.queue))
                raise too_long(self.name, request, decision.t - gate.t)
            if request.on_wait is not None:
                waiter.waiting = queued_at(decision.position, decision.t - gate.t)
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
        gate = self._gate
        with self._lock:
            first = next(iter(gate.queue), None) is waiter
            self._advance()
            if waiter.grant is not None:
                return first  # or those before it have just been woken, and go on before it does
            if waiter.refused is not None:
                raise waiter.refused
            if gate.t >= waiter.deadline:
                raise too_long(self.name, waiter.request, gate.estimate(gate.costs(waiter.request.units)) - gate.t)
            if gate.t >= waiter.look_at:
                moment = gate.next_at()
                waiter.look_at = max(moment, gate.t + LOOK_AGAIN) if moment < NEVER else NEVER
            return False

    def _advance(self) -> None:
        """Let pass whoever is due, wake them, and see to it that the new head looks in time."""
        gate = self._gate
        self._gather()
        self._empty_pool()
        lost = True
        while gate.queue and lost:
            lost = False
            for caller, grant in gate.advance(self._clock.now()):
                waiter = cast(Waiter, caller)
                if not self._grant(waiter, grant, self.declared.holds):  # it is for those behind it
                    gate.cancel(gate.t, waiter.request.units, grant.t)
                    lost = True
                elif waiter.holds:
                    self._holders.add(waiter.request.units)
        self._arm_head()

    def _gather(self) -> None:
        """Let the crowd wait in the gate's queue, with everybody else."""
        gate, crowd = self._gate, self._crowd
        if not crowd:
            return
        gate.queue[self] = gate.plain  # lest anybody sees neither a queue nor a crowd while they move
        waiting = set(crowd)
        moving: list[Place] = []
        late: list[Place] = []  # who came to the crowd just when it began to move
        while crowd:
            with suppress(IndexError):  # whoever leaves this moment takes the first, so they are taken from the end
                place = crowd.pop()
                (moving if place in waiting else late).append(place)
        for place in (*reversed(moving), *late):
            if not place.done():
                gate.join(self._move(place), PLAIN.units, gate.usual)
        del gate.queue[self]

    def _empty_pool(self) -> None:
        """Return what is in the pool to the gate, before it decides anything."""
        while self._pool:
            try:
                self._pool.pop()
            except IndexError:  # somebody entered with it
                return
            self._put_back({})

    def _arm_head(self) -> None:
        gate = self._gate
        if gate.queue and not self._pools:
            head = cast(Waiter, next(iter(gate.queue)))
            moment = gate.next_at()
            if moment < head.look_at:
                head.look_at = moment
                head.wake()

    def let_go(self) -> bool:
        """Become loose if forgetting this line would change nothing: nobody waits, nothing is held, no debt, no update.

        A line that is busy this very moment is not idle; waiting for it here could wait for ever, since it may be asking the
        store to be kept.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._advance()
            self._loose = self._gate.idle_at() <= self._clock.now() and not self._said.updated(self.declared.program)
            if self._loose:
                self.enter, self.enter_later, self._shut = shut, self.queue, True
                self._gate.rules = (*self._gate.rules,)  # a door that somebody has in hand looks at them, and shuts too
            return self._loose
        finally:
            self._lock.release()
            self._lock.see_to_it()

    def forked(self) -> None:
        """In the child of a fork: the parent's waiters and permits are the parent's, what the rates have counted stays."""
        self._epoch += 1
        self._empty_pool()
        self._inherits = self._holders.take_out() > 0 or self._inherits
        for those in (self._crowd, self._moved, self._gone):
            those.clear()
        self._gate.orphan()
        self._holders.forget()
        self._lock = Lock(threading.Lock())
        self._open()


class MemoryStore:
    """The lines of this process by name. Idle ones are forgotten, a line with a debt never is."""

    def __init__(self, clock: clocks.Clock | None = None) -> None:
        self.clock = clock or clocks.made()
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
