"""The state of one queue in memory: the limits in force, and the acquires that need not wait.

Each step runs under the queue's lock, and takes effect as wait_queue.py says.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.changes import Change, Drain, Pause, Reset, Resume, Update
from headgate.clock import Clock
from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.gate import Gate, Grant
from headgate.permit import Permit, Refusal, start_holding
from headgate.request import Request
from headgate.stores.limit_history import Declarations
from headgate.stores.memory.lock import Lock
from headgate.stores.memory.wait_queue import WaitQueue
from headgate.stores.refusals import never, unknown_limiter
from headgate.stores.status import Status, status_of, unused
from headgate.waiting import seconds_of

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.permit import Issuer
    from headgate.stores.memory.waiters import Waiter

UNHELD = ConcurrencyRule("", 0, 0)  # stands in for a concurrency limit if there is none


class OwnStore(Protocol):
    """The store, as its queues see it."""

    clock: Clock
    is_share: bool

    def keep(self, queue: Any) -> None:
        """Keep this queue again. It was evicted, and is used again."""

    def drop(self, queue: Any) -> None:
        """Keep this queue no longer. It is evicted."""

    def open_queue(self, name: str, declared: Declaration) -> Any:
        """The queue of an encoded name."""

    def has_keys(self, name: str) -> bool:
        """Whether a key of the limiter `name` has limits."""

    def pause_keys(self, name: str, until: int) -> None:
        """The limiter `name` is paused until this moment, with all its keys."""


class QueueState:
    __slots__ = (
        "_clock",
        "_declarations",
        "_drained",
        "_evicted",
        "_gate",
        "_issuer",
        "_parent_holds",
        "_rebuild",
        "_store",
        "fast_path_closed",
        "undeclared",
        "waiting",
    )

    def __init__(
        self,
        store: OwnStore,
        issuer: Issuer,
        declared: Declaration,
        lock: Lock,
        rebuild: Callable[[], None],
    ) -> None:
        self._store, self._clock = store, store.clock
        self._issuer = issuer  # of the permits
        self._rebuild = rebuild  # the fast path of the queue
        self.waiting = WaitQueue(
            issuer.name, declared, store.clock, lock, resume_pooling=self._resume_pooling
        )
        self._gate = self.waiting.gate
        self._declarations = Declarations()
        self.undeclared = True  # no acquire has declared the limits
        self._drained = False  # a service reported its remaining budget while undeclared
        self._evicted = False  # the store has let go of this queue, because it was idle
        self._parent_holds = False  # a block that began before a fork may end in this child
        self.fast_path_closed = True  # `closed()` when the fast path was built

    # The fast path --------------------------------------------------------------------------------

    def closed(self) -> bool:
        """Whether no caller may enter by the fast path now."""
        gate = self._gate
        return self._evicted or self.undeclared or gate.not_before > gate.t

    def may_pool(self) -> bool:
        """Whether a released permit may stay in the pool.

        Only under concurrency limits alone (`timeless`). Not while more are held than they now
        allow (S1), nor in a pause, nor in a child whose parent held permits.
        """
        fits = all(rule.used <= rule.capacity for rule in self._gate.rules.holding)
        return self.waiting.declared.timeless and fits and not (self.closed() or self._parent_holds)

    def _resume_pooling(self) -> None:
        if self.may_pool():
            self._rebuild()

    def _invalidate_fast_path(self) -> None:
        """Make the present fast-path functions decline: they compare the rules by identity."""
        self._gate.rules = copy(self._gate.rules)

    def prepare(self, declares: bool = True) -> None:
        """Reopen a closed fast path. A pause keeps it closed, and so do undeclared limits.

        `declares`: for an acquire, which declares the present limits.
        """
        if self.fast_path_closed:
            if declares and self.undeclared:
                self._declarations.declare(self.waiting.declared.program)
                self.undeclared = False
            if self._evicted:
                self._evicted = False
                self._store.keep(self._issuer)
            self._gate.clamp(self._clock.now())
            self._rebuild()

    def take_one(self, request: Request) -> Permit | None:
        """A permit for one of each unit, if no caller waits and the limits allow it."""
        if self.fast_path_closed:
            self.prepare()
        waiting, gate = self.waiting, self._gate
        if waiting.local.futures or gate.queue or waiting.starting:
            return None
        if waiting.holders.pool:
            waiting.holders.empty_pool()
        holding = gate.rules.holding
        if len(holding) > 1:
            now = self._clock.now()
            return waiting.holders.all_or_nothing(
                lambda one: self._permit(one, gate.at_once(now)), request
            )
        # This is `all_or_nothing` for one limit at most, written out because that is faster.
        rule = holding[0] if holding else UNHELD
        used = rule.used
        try:
            return self._permit(request, gate.at_once(self._clock.now()))
        except BaseException:
            rule.used = used
            raise

    def take(self, request: Request) -> Permit | Refusal | Exception:
        permit = None if request.units else self.take_one(request)
        if permit is not None:
            return permit
        self.prepare()
        rules = self._gate.rules
        if rules.never(rules.costs(request.units)):
            return never(self.waiting.name, self.waiting.declared, request)
        self.waiting.advance()
        return self.waiting.holders.all_or_nothing(self._take_or_refuse, request)

    def _take_or_refuse(self, request: Request) -> Permit | Refusal:
        gate = self._gate
        decision = gate.acquire(self._clock.now(), request, request.units, max_sleep=0)
        permit = self._permit(request, decision if isinstance(decision, Grant) else None)
        # `or` would call `Permit.__bool__`. An exception there would lose the permit.
        return Refusal(seconds_of(decision.t - gate.t)) if permit is None else permit

    def _permit(self, request: Request, grant: Grant | None) -> Permit | None:
        if grant is None:
            return None
        permit = Permit(self._issuer, request.units, grant, 0.0, self.waiting.local.epoch, None)
        if self.waiting.declared.holds:
            if request.units or not self.waiting.holders.counted:  # else `add` does nothing
                self.waiting.holders.add(request.units)
            start_holding(permit)  # the last step
        return permit

    def join(self, waiter: Waiter) -> Exception | None:
        self.prepare()
        return self.waiting.join(waiter)

    # The limits -----------------------------------------------------------------------------------

    def learn(self) -> Declaration:
        if self.undeclared:
            raise unknown_limiter(self.waiting.name)
        return self.waiting.declared

    def foresee(self, declared: Declaration) -> Declaration:
        """The limits that would hold if `declared` were declared now."""
        present = self.waiting.declared
        overruled = self._declarations.overruled(declared.program, present.program)
        return present if overruled else declared

    def declare(self, declared: Declaration) -> None:
        """The last declaration wins, unless an update has overruled it already."""
        program, present = declared.program, self.waiting.declared.program
        if program == present and not self.undeclared:
            return
        if not self._declarations.overruled(program, present):
            self.prepare(declares=False)
            self._declarations.declare(program)
            self._replace_limits(declared)

    def change(self, change: Change) -> None:
        match change:
            case Update(declared=declared, former=former):
                self._update(declared, former)
            case Pause(time=time):
                self._begin_pause(lambda now: self._gate.pause(now, time))
                self._store.pause_keys(self.waiting.name, self._gate.own_pause)
            case Resume():
                self._gate.resume(self._clock.now())
                self._end_pause()
                self._store.pause_keys(self.waiting.name, 0)
            case Reset():
                self.waiting.advance_later()
                self._drained = False
                self._gate.reset(self._clock.now())
            case Drain(unit=unit, left=left, limit=limit, since=since):
                self.prepare(declares=False)
                self._drained = self._drained or self.undeclared
                self._gate.drain(self._clock.now(), unit, limit=limit, left=left, since=since)

    def _update(self, declared: Declaration, former: Declaration | None) -> None:
        self.prepare(declares=False)
        present = self.waiting.declared
        # The update overrules the limits in the code, too, even if no acquire has declared them.
        if former is not None or self.undeclared:
            self._declarations.declare((former or present).program)
        self._declarations.update(declared.program)
        if self.undeclared or declared.program != present.program:
            self._replace_limits(declared)

    def accept(self, declared: Declaration) -> None:
        """Go by these limits, if no acquire has declared any."""
        if self.undeclared:
            self.prepare(declares=False)
            self._replace_limits(declared, declares=False)

    def _replace_limits(self, declared: Declaration, declares: bool = True) -> None:
        """Replace the limits. It notes them last, so that after an interrupt it runs again."""
        waiting, gate = self.waiting, self._gate
        waiting.local.migrate()
        waiting.holders.empty_pool()
        waiting.advance_later()
        waiting.holders.uncount()
        for waiter in cast("list[Waiter]", gate.follow(self._clock.now(), declared.rules())):
            waiter.refused = never(waiting.name, declared, waiter.request)
            waiter.wake()
            gate.leave(waiter)
        # Limits that no acquire has declared leave no counts to the next ones.
        if self.undeclared and not self._drained:
            gate.reset(self._clock.now())
        waiting.holders.count_again()
        waiting.declared, self.undeclared = declared, self.undeclared and not declares
        self._rebuild()
        waiting.advance()

    def pause_whole(self, until: int) -> None:
        """The whole limiter is paused until this moment. 0, or a moment that is over: it is not."""
        left = max(0, until - self._clock.now())
        if left:
            self._begin_pause(lambda now: self._gate.pause_whole(now, left))
        else:
            self._gate.pause_whole(self._clock.now(), 0)
            self._end_pause()

    def _begin_pause(self, pause: Callable[[int], None]) -> None:
        self.prepare(declares=False)
        self.waiting.local.migrate()
        self.waiting.holders.empty_pool()
        pause(self._clock.now())
        self._invalidate_fast_path()
        self._rebuild()

    def _end_pause(self) -> None:
        self._rebuild()
        self.waiting.advance()

    def status(self, own: Declaration | None) -> Status:
        """`own`: the limits to report if no acquire has declared any."""
        self.waiting.advance()
        self._gate.clamp(self._clock.now())
        if self.undeclared and not self._drained and own is not None:
            return unused(self.waiting.name, own, self._gate.pause_left())
        return read_status(self.waiting.name, self._gate, self.waiting.declared)

    # After an exception, in an idle store, and after a fork ---------------------------------------

    def repair(self) -> None:
        self.waiting.repair()
        self._rebuild()
        self.waiting.advance()

    def try_evict(self, _: None) -> bool:  # `Lock.run` passes an argument
        """Close the fast path, if forgetting the queue changes nothing. Returns whether it did."""
        self.waiting.advance()
        self._evicted = self._gate.idle_at() <= self._clock.now() and not (
            self.waiting.holders.inside or self._declarations.updated(self.waiting.declared.program)
        )
        if self._evicted:
            self._invalidate_fast_path()
            self._rebuild()
            # This runs under the lock. So each use comes before it, or has the queue kept again.
            self._store.drop(self._issuer)
        return self._evicted

    def disown(self) -> None:
        """In the child of a fork: waiters and permits are the parent's. Counts of rates stay."""
        inherited = self.waiting.holders.uncount() > len(self.waiting.holders.pool)
        self._parent_holds = inherited or self._parent_holds
        self.waiting.forget()
        self._invalidate_fast_path()
        self._rebuild()


def read_status(name: str, gate: Gate, declared: Declaration) -> Status:
    left = [rule.left(gate.t) for rule in gate.rules.all]
    numbers = len(gate.queue), gate.entry_at() - gate.t, gate.pause_left()
    return status_of(name, declared, gate.rules.all, left, *numbers)
