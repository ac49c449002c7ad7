"""The steps of one queue in memory, each under its lock: joining, granting, releasing, giving up,
other limits.

Here live the changes of the state, and nothing that waits. Each step takes effect whole or not at
all, whatever exception a signal handler raises in it (see lock.py): the last assignment of a step
is the one that counts, and `_mend` restores the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from headgate.clock import Clock
from headgate.forks import forked
from headgate.gate.concurrency import NEVER, ConcurrencyRule
from headgate.gate.gate import Gate, Grant, Refuse, Wait
from headgate.permit import Permit, Refusal, start_holding
from headgate.request import Request
from headgate.stores.limit_history import Declarations
from headgate.stores.loops import Learning, Loops
from headgate.stores.memory.fast_path import (
    Crowd,
    Place,
    held_exit,
    pooled_door,
    pooled_exit,
    pooled_queue,
    shut,
    timed_door,
    timed_exit,
)
from headgate.stores.memory.holders import Holders
from headgate.stores.memory.lock import Lock, Reentered
from headgate.stores.memory.waiters import MovedWaiter, TaskWaiter, Waiter
from headgate.stores.refusals import never, queue_full, too_long
from headgate.stores.status import Status, status_of, unused
from headgate.waiting import queued_at, seconds_of

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units

LOOK_AGAIN = (
    10_000  # microseconds from one look to the next of a waiter whose estimate came too early
)
PLAIN = Request({})
UNHELD = ConcurrencyRule("", 0, 0)  # of limits of which nothing is held
T = TypeVar("T")


class Home(Protocol):
    """The store, as its queues see it."""

    clock: Clock

    def keep(self, queue: Any) -> None: ...


class Steps:
    """The state of one queue, and what changes it."""

    __slots__ = (
        "__weakref__",
        "_born",
        "_clock",
        "_crowd",
        "_drained",
        "_epoch",
        "_gate",
        "_holders",
        "_inherits",
        "_learning",
        "_lock",
        "_loops",
        "_loose",
        "_moved",
        "_moving",
        "_pool",
        "_pools",
        "_said",
        "_shut",
        "_store",
        "_undeclared",
        "declared",
        "enter",
        "enter_later",
        "enter_task",
        "leave",
        "name",
        "starting",
    )

    enter_later: Callable[[Request], Coroutine[Any, Any, None]]

    def __init__(self, store: Home, name: str, declared: Declaration) -> None:
        self.name = name
        self._store = store
        self._epoch = (
            0  # grows with every fork: what the parent holds is not the child's to release
        )
        self._born = (
            0  # the first epoch of this process: what was asked before it goes on in the parent
        )
        self._set_up(declared)

    def _set_up(self, declared: Declaration) -> None:
        """The state of a new queue, which no limiter has used."""
        self.declared = declared
        self._said = Declarations()
        self._clock = self._store.clock
        self._gate = Gate(declared.rules(), self._clock.now())
        self._loose = False  # the store has let go of this line because it was idle
        self._undeclared: bool = True  # no acquire has declared the limits
        self._drained = False  # before that, a service has said what is left
        self._shut = False  # while undeclared or loose, or in a pause, nobody passes by the doors
        # Permits that were left and still count as held. A caller takes one and asks no gate.
        self._pool: list[None] = []
        # The callers that wait for concurrency alone and ask for one permit: see fast_path.py.
        self._crowd: Crowd = deque()
        self._moved: dict[
            int, MovedWaiter
        ] = {}  # by id of their place: whom it has become, until its task sees it
        self._moving: Crowd = deque()  # on their way from the crowd to the gate's queue
        self.starting: deque[object] = (
            deque()
        )  # a ticket for each task that was granted its entry and has not run since
        self._learning = Learning(self)
        self._loops = Loops()
        self._holders = Holders(self._gate)
        self._inherits = False  # somebody was inside at the fork, and may leave in the child too
        self._lock = Lock(self.name, self._mend)
        self._open()

    def begin_again(self, declared: Declaration) -> list[Waiter]:
        """Be as new, by the clock that the store has now.

        Returns the waiters, which the queue no longer knows.
        """
        self._gather()
        waiting = [cast(Waiter, caller) for caller in self._gate.queue]
        self._epoch += 1  # a permit that was granted before gives nothing back
        self._set_up(declared)
        return waiting

    def _open(self) -> None:
        """Choose the ways in and out for acquires of one permit without options.

        See fast_path.py.
        """
        queue: Any = self
        gate, lock, pool, crowd = self._gate, self._lock, self._pool, self._crowd
        inside = None if self._holders.counted else self._holders.inside
        pools = self._may_pool()
        self._shut = self._loose or self._undeclared or gate.paused()
        enter = shut if self._shut else timed_door(queue, gate, lock, self._clock.now, inside)
        if pools:
            enter = pooled_door(queue, gate, pool, crowd, enter)
            self.leave = pooled_exit(queue, gate, lock, pool, crowd)
        else:
            self.leave = (
                held_exit(lock, self._left) if inside is None else timed_exit(queue, inside)
            )
        self.enter_later = pooled_queue(queue, gate, pool, crowd) if pools else queue.enter_queue
        self._pools, self.enter = pools, enter
        self.enter_task = enter if self._learning.knows() else self._learning.enter

    def _may_pool(self) -> bool:
        """After a cut nobody may pass on what is left (S1), nor after a fork what was the parent's,
        nor anything in a pause.
        """
        return self.declared.timeless and not (
            self._undeclared or self._inherits or self._gate.over() or self._gate.paused()
        )

    # Under the lock -------------------------------------------------------------------------------

    def _whole(self, change: Callable[[], T]) -> T:
        """`change()`; an exception that comes before its end leaves what is held as it was."""
        holding = self._gate.holding
        before = (
            [rule.used for rule in holding]
            if len(holding) > 1
            else holding[0].used
            if holding
            else 0
        )
        try:
            return change()
        except BaseException:
            for rule, used in zip(
                holding, before if isinstance(before, list) else [before], strict=False
            ):
                rule.used = used
            raise

    def _take_one(self, request: Request) -> Permit | None:
        if self._shut:
            self._keep()
        gate = self._gate
        if self._crowd or gate.queue or self.starting:
            return None
        if self._pool:
            self._empty_pool()
        if len(gate.holding) > 1:
            return self._whole(lambda: self._take_at_once(request))
        slots = gate.holding[0] if gate.holding else UNHELD
        used = slots.used
        try:
            grant = gate.at_once(self._clock.now())
            if grant is None:
                return None
            permit = Permit(cast(Any, self), request.units, grant, 0.0, self._epoch, None)
            if self.declared.holds:
                if not self._holders.counted:
                    self._holders.add({})
                start_holding(permit)
        except BaseException:
            slots.used = used
            raise
        return permit

    def _take_at_once(self, request: Request) -> Permit | None:
        grant = self._gate.at_once(self._clock.now())
        return None if grant is None else self._granted(request, grant)

    def _take(self, request: Request) -> Permit | Refusal | Exception:
        permit = None if request.units else self._take_one(request)
        if permit is not None:
            return permit
        self._keep()
        if self._never(request):
            return never(self.name, self.declared, request)
        self._advance()
        return self._whole(lambda: self._take_or_refuse(request))

    def _take_or_refuse(self, request: Request) -> Permit | Refusal:
        gate = self._gate
        decision = gate.acquire(self._clock.now(), request, request.units, max_sleep=0)
        if isinstance(decision, Grant):
            return self._granted(request, decision)
        return Refusal(seconds_of(decision.t - gate.t))

    def _granted(self, request: Request, grant: Grant) -> Permit:
        """That it is held is said in one step, when nothing can come between."""
        permit = Permit(cast(Any, self), request.units, grant, 0.0, self._epoch, None)
        if self.declared.holds:
            if request.units or not self._holders.counted:
                self._holders.add(request.units)
            start_holding(permit)
        return permit

    def begun(self, ticket: object) -> None:
        """The task with this ticket runs, or never will."""
        if ticket in self.starting:
            self.starting.remove(ticket)

    def _status(self, own: Declaration | None) -> Status:
        self._advance()
        self._gate.clamp(self._clock.now())
        if self._undeclared and not self._drained and own is not None:
            return unused(self.name, own, self._gate.pause_left())
        return self._status_of(self._gate, self.declared)

    def _status_of(self, gate: Gate, declared: Declaration) -> Status:
        now = gate.t
        left = [rule.left(now) for rule in gate.rules]
        numbers = len(gate.queue), gate.entry_at() - now, gate.pause_left()
        return status_of(self.name, declared, gate.rules, left, *numbers)

    def _count_late(self, waiter: Waiter) -> None:
        self._whole(lambda: self._holders.add_late({}))
        waiter.holds = True

    def _release(self, permit: Permit) -> None:
        if permit.held and permit.key == self._epoch:
            if self._crowd or self._gate.queue or not self._pools:
                self._then_advance()
            self._return(permit.units)
        permit.held = False

    def _left(self) -> None:
        if self._crowd or self._gate.queue or not self._pools:
            self._then_advance()
        self._return({})

    def _return(self, units: Units) -> None:
        if units or not self._holders.counted:
            self._holders.remove(units)
        holding = self._gate.holding
        if not units and len(holding) == 1:  # the last step, and the only one that counts
            holding[0].give(self._gate.usual[self._gate.slots[0][0]], 0, 0)
        else:
            self._whole(lambda: self._gate.release(units))

    def _then_advance(self) -> None:
        """After the act that runs now: it takes effect with its last step, and what follows from it
        may run twice.
        """
        if self._crowd or self._gate.queue or (not self._pools and self.declared.timeless):
            self._lock.deferred.append((self._lock, self._advance))

    def pass_on(self) -> None:
        """Let the head of the gate's queue have what is left, if it asks for just that: no need to
        count it back and forth.
        """
        gate = self._gate
        self._gather()
        self._then_advance()
        waiter = cast("Waiter | None", next(iter(gate.queue), None)) if self._pools else None
        if waiter is None or waiter.grant is not None or gate.queue[waiter] is not gate.plain:
            self._return({})
            return
        gate.fence += 1
        waiter.holds = True
        waiter.grant = Grant(gate.clamp(self._clock.now()), gate.fence)

    def _undo_place(self, place: Place) -> None:
        self._gather()
        waiter = self._moved.get(id(place))
        if waiter is not None:
            self._undo(waiter)
            self._moved.pop(id(place), None)
        elif place.done() and not place.cancelled() and place.exception() is None:
            ticket = place.result()
            if ticket in self.starting:
                self._left()
                self.starting.remove(ticket)

    def _undo(self, waiter: Waiter) -> None:
        """Take a waiter out, and what it was granted back."""
        if waiter.epoch < self._born:
            return
        self._gather()
        self._then_advance()
        self._gate.leave(waiter)
        self.begun(waiter.ticket)
        self._whole(lambda: self._take_back(waiter))

    def _take_back(self, waiter: Waiter) -> None:
        if waiter.grant is not None:
            units = waiter.request.units
            if not waiter.holds:
                self._holders.add_late(units)  # the limits may have changed since the grant
            self._gate.cancel(self._clock.now(), units, waiter.grant.t)
            self._holders.remove(units)
            waiter.grant = None

    def _declare(self, declared: Declaration) -> None:
        program, present = declared.program, self.declared.program
        if (program == present and not self._undeclared) or self._said.overruled(program, present):
            return
        self._keep(asks=False)
        self._said.declare(program)
        self._follow(declared)

    def _update(self, declared: Declaration, former: Declaration | None) -> None:
        self._keep(asks=False)
        if former is not None or self._undeclared:
            self._said.declare((former or self.declared).program)
        self._said.update(declared.program)
        if self._undeclared or declared.program != self.declared.program:
            self._follow(declared)

    def _pause(self, time: int) -> None:
        self._keep(asks=False)
        self._gather()
        self._empty_pool()
        self._gate.pause(self._clock.now(), time)
        self._gate.rules = (*self._gate.rules,)  # as in let_go
        self._open()

    def _resume(self) -> None:
        self._gate.resume(self._clock.now())
        self._open()
        self._advance()

    def _reset(self) -> None:
        self._then_advance()
        self._drained = False
        self._gate.reset(self._clock.now())

    def _suppose(self, declared: Declaration) -> None:
        """Go by `declared` for as long as no acquire declares limits."""
        if self._undeclared:
            self._keep(asks=False)
            self._follow(declared, declares=False)

    def _follow(self, declared: Declaration, declares: bool = True) -> None:
        """Waiters are queued again under the new limits."""
        self._gather()
        self._empty_pool()
        self._then_advance()
        inside = self._holders.take_out()
        new = (
            self._undeclared and not self._drained
        )  # limits that no acquire has declared leave no trace
        self.declared = declared
        for waiter in cast("list[Waiter]", self._gate.follow(self._clock.now(), declared.rules())):
            waiter.refused = never(self.name, declared, waiter.request)
            waiter.wake()
        if new:
            self._gate.reset(self._clock.now())
        self._undeclared = self._undeclared and not declares
        self._holders.put_in(inside)
        self._open()
        self._advance()

    def _never(self, request: Request) -> bool:
        """The limits may have changed since the request was checked (T7)."""
        return self._gate.never(self._gate.costs(request.units))

    def _keep(self, asks: bool = True) -> None:
        """Before anything is done: an acquire declares the limits."""
        if self._shut:
            if asks and self._undeclared:
                self._said.declare(self.declared.program)
                self._undeclared = False
            if self._loose:
                self._loose = False
                self._store.keep(self)
            self._gate.clamp(self._clock.now())
            self._open()

    def _join(self, waiter: Waiter) -> bool:
        """Ask the gate. True: the grant is there at once."""
        refused = self._lock.hold(self._join_now, waiter)
        if refused is not None:
            raise refused
        return waiter.grant is not None

    def _join_now(self, waiter: Waiter) -> Exception | None:
        self._keep()
        waiter.epoch = self._epoch
        request, gate = waiter.request, self._gate
        self._gather()
        self._drop_closed()
        if self._pools and gate.queue and request.plain:
            gate.join(waiter, request.units, gate.usual)  # behind others, for as long as it takes
            self._note_loop(waiter)
            if self._pool:
                self._advance()
            return None
        if self._never(request):
            return never(self.name, self.declared, request)
        self._empty_pool()
        decision = self._whole(lambda: self._decide(waiter))
        if isinstance(decision, Refuse):
            delay = decision.t - gate.t
            return (
                queue_full(self.name, request, delay, len(gate.queue))
                if decision.full
                else too_long(self.name, request, delay)
            )
        if isinstance(decision, Wait):
            self._queued(waiter, decision)
        return None

    def _decide(self, waiter: Waiter) -> Grant | Wait | Refuse:
        request, now = waiter.request, self._clock.now()
        decision = self._gate.acquire(
            now, waiter, request.units, max_sleep=request.max_sleep, max_waiters=request.max_waiters
        )
        if isinstance(decision, Grant):
            waiter.holds = self.declared.holds
            if waiter.holds:
                self._holders.add(request.units)
            waiter.grant = decision
        return decision

    def _queued(self, waiter: Waiter, wait: Wait) -> None:
        request, gate = waiter.request, self._gate
        self._note_loop(waiter)
        if request.on_wait is not None:
            waiter.waiting = queued_at(wait.position, wait.t - gate.t)
        if (
            wait.t > gate.t
        ):  # only the head looks at its very moment: those behind it are let pass by it, in order
            waiter.look_at = wait.t + (LOOK_AGAIN if wait.position else 0)
        if request.max_sleep is not None:
            waiter.deadline = gate.t + request.max_sleep
        if self._pool:  # somebody left since it was emptied, and may have seen no queue
            self._advance()
        else:
            self._arm_head()

    def _look(self, waiter: Waiter) -> bool:
        """Let the waiters pass that are due.

        True when this waiter has its grant, an error when it has waited long enough.
        """
        self._check_fork(waiter)
        if waiter.grant is not None:
            return True
        seen = self._lock.hold(self._look_now, waiter)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def _check_fork(self, waiter: Waiter) -> None:
        if waiter.epoch < self._born:
            raise forked(self.name)

    def _look_now(self, waiter: Waiter) -> bool | Exception:
        gate = self._gate
        first = next(iter(gate.queue), None) is waiter
        self._advance()
        if waiter.grant is not None:
            return first  # or those before it have just been woken, and go on before it does
        if waiter.refused is not None:
            return waiter.refused
        if gate.t >= waiter.deadline:
            return too_long(
                self.name, waiter.request, gate.estimate(gate.costs(waiter.request.units)) - gate.t
            )
        if gate.t >= waiter.look_at:
            moment = gate.next_at()
            waiter.look_at = max(moment, gate.t + LOOK_AGAIN) if moment < NEVER else NEVER
        return False

    def _advance(self) -> None:
        """Let the waiters pass that are due, wake them, and see to it that the new head looks in
        time.
        """
        self._gather()
        self._drop_closed()
        self._empty_pool()
        if not self._pools and self._may_pool():
            self._open()  # enough are gone since the cut
        queue = self._gate.queue
        while queue:
            waiter = cast(Waiter, next(iter(queue)))
            let_pass = partial(self._let_pass, waiter)
            if waiter.grant is None and not self._whole(let_pass):
                break
            self._send_off(waiter)
        self._arm_head()

    def _let_pass(self, waiter: Waiter) -> bool:
        gate = self._gate
        now, (units, costs) = gate.clamp(self._clock.now()), gate.queue[waiter]
        t = gate.ready(costs)
        if t > now:
            return False
        grant = gate.take(costs, t)
        waiter.holds = self.declared.holds
        if waiter.holds:
            self._holders.add(units)
        waiter.grant = grant
        return True

    def _send_off(self, waiter: Waiter) -> None:
        """Wake one that has its grant, and take it out of the queue.

        In this order: it is woken, whatever interrupts this.
        """
        if isinstance(waiter, TaskWaiter) and waiter.ticket is None:
            waiter.ticket = object()
            self.starting.append(waiter.ticket)
        if not waiter.wake():  # its loop is gone, and its grant is for those behind it
            self.begun(waiter.ticket)
            self._whole(lambda: self._take_back(waiter))
        self._gate.leave(waiter)

    def _gather(self) -> None:
        """Move the crowd into the gate's queue, behind the others that wait there."""
        gate, crowd, moving = self._gate, self._crowd, self._moving
        if not (crowd or moving):
            return
        gate.queue[self] = (
            gate.plain
        )  # lest anybody sees neither a queue nor a crowd while they move
        while crowd or moving:
            with suppress(IndexError):
                moving.extend(iter(crowd.popleft, None))  # all of them in one step
            while moving:
                if not moving[0].done():
                    self._move(moving[0])
                moving.popleft()
        gate.queue.pop(self, None)

    def _move(self, place: Place) -> None:
        waiter = self._moved.get(id(place))
        if waiter is None:
            self._loops.add(place.get_loop())
            waiter = self._moved[id(place)] = MovedWaiter(PLAIN, place)
            waiter.epoch = self._epoch
        if waiter not in self._gate.queue and waiter.grant is None:
            self._gate.join(waiter, PLAIN.units, self._gate.usual)

    def _note_loop(self, waiter: Waiter) -> None:
        if isinstance(waiter, TaskWaiter):
            self._loops.add(waiter.future.get_loop())

    def _drop_closed(self) -> None:
        """Take out the waiters whose event loop is closed: their tasks never go on, and the queue
        keeps them alive.
        """
        closed = self._loops.closed()
        if not closed:
            return
        for waiter in list(self._gate.queue):
            if (
                isinstance(waiter, TaskWaiter)
                and waiter.grant is None
                and waiter.future.get_loop() in closed
            ):
                self._moved.pop(id(waiter.future), None)
                self._gate.leave(waiter)
        self._loops.forget(closed)
        self._advance()  # those behind them may be due

    def _empty_pool(self) -> None:
        """Return what is in the pool to the gate, before it decides anything."""
        while self._pool:
            try:
                self._pool.pop()
                self._return({})
            except IndexError:  # somebody entered with it
                return
            except BaseException:
                self._pool.append(None)
                raise

    def _mend(self) -> None:
        """Restore the order that an exception in the middle of a step may have left undone."""
        gate = self._gate
        gate.queue.pop(self, None)
        self._gather()
        totals = [0] * len(gate.rules)
        for index, _ in gate.rated:
            totals[index] = sum(costs[index] for _, costs in gate.queue.values())
        gate.waiting = totals
        self._open()
        self._advance()

    def _next_at(self, _: None) -> int:
        return self._gate.next_at()

    def _arm_head(self) -> None:
        gate = self._gate
        if gate.queue and not self._pools:
            head = cast(Waiter, next(iter(gate.queue)))
            moment = gate.next_at()
            if moment < head.look_at:
                head.look_at = moment
                head.wake()

    def let_go(self) -> bool:
        """Become loose if forgetting this line would change nothing: nobody waits, nothing is held,
        no debt, no update.
        """
        try:
            return self._lock.hold(self._loosen, None)
        except Reentered:
            return False

    def _loosen(self, _: None) -> bool:
        self._advance()
        self._loose = self._gate.idle_at() <= self._clock.now() and not self._said.updated(
            self.declared.program
        )
        if self._loose:
            self.enter = self.enter_task = shut
            self.enter_later, self._shut = cast(Any, self).enter_queue, True
            self._gate.rules = (
                *self._gate.rules,
            )  # a door that somebody has in hand looks at them, and shuts too
        return self._loose

    def forked(self) -> None:
        """In the child of a fork: the parent's waiters and permits are the parent's, what the rates
        have counted stays.
        """
        self._lock.fork(self._disown)

    def _disown(self) -> None:
        """The lists are new, because code without the lock, such as a leave, may go on with the old
        ones.
        """
        self._epoch += 1
        self._born = self._epoch
        self._gate.read_rules()  # another thread may have been about to
        self._inherits = self._holders.take_out() > len(self._pool) or self._inherits
        for those in (self._pool, self._crowd, self._moved, self._moving, self.starting):
            those.clear()
        self._pool, self._crowd, self.starting = [], deque(), deque()
        self._gate.orphan()
        self._holders.forget()
        self._loops = Loops()
        self._gate.rules = (*self._gate.rules,)  # as in let_go
        self._open()
