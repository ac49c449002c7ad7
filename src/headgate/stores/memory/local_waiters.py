"""The tasks that wait for one permit each, outside the gate's queue.

A leaving caller hands its permit to the first of them without the lock: see fast_path.py. They
migrate into the gate's queue, behind the waiters there, before the gate decides anything.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from headgate.clock import Clock
from headgate.gate.gate import Gate
from headgate.request import Request
from headgate.stores.loops import Loops
from headgate.stores.memory.waiters import Futures, MigratedWaiter

PLAIN = Request({})


class LocalWaiters:
    __slots__ = ("_clock", "_gate", "_migrating", "epoch", "futures", "loops", "migrated")

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate, self._clock = gate, clock
        # Grows with each fork or restart. To release a permit of an earlier epoch changes nothing.
        self.epoch = 0
        self.futures: Futures = deque()
        self._migrating: Futures = deque()  # on their way to the gate's queue
        # The waiters of the tasks that have migrated, by the ids of their futures. A task takes its
        # own out when it runs.
        self.migrated: dict[int, MigratedWaiter] = {}
        self.loops = Loops()  # event loops whose tasks wait in the gate's queue

    def migrate(self) -> None:
        """Move all of them into the gate's queue. After an exception, the next call goes on."""
        gate, futures, migrating = self._gate, self.futures, self._migrating
        if not (futures or migrating):
            return
        # Threads look at both queues without the lock. With this mark, they see a waiter in the
        # gate's queue while the waiters are on their way.
        gate.queue[self] = gate.rules.plain
        while futures or migrating:
            with suppress(IndexError):
                # One call of C moves them all, until `popleft` raises IndexError.
                migrating.extend(iter(futures.popleft, None))
            while migrating:
                if not migrating[0].done():
                    self._migrate_first()
                migrating.popleft()
        gate.queue.pop(self, None)

    def _migrate_first(self) -> None:
        future, gate = self._migrating[0], self._gate
        waiter = self.migrated.get(id(future))
        if waiter is None:
            self.loops.add(future.get_loop())
            waiter = self.migrated[id(future)] = MigratedWaiter(PLAIN, future)
            # The task came earlier. If its wait is counted, it corrects `since` when it runs.
            waiter.epoch, waiter.since = self.epoch, self._clock.now()
        if waiter not in gate.queue and waiter.grant is None:
            gate.join(waiter, PLAIN.units, gate.rules.usual)

    def repair(self) -> None:
        """Remove the mark that an interrupted `migrate` left in the gate's queue."""
        self._gate.queue.pop(self, None)

    def forget(self) -> None:
        """In the child of a fork: the waiters are the parent's.

        Code without the lock may go on with the old deque. So that one is emptied and replaced.
        """
        for those in (self.futures, self.migrated, self._migrating):
            those.clear()
        self.futures, self.loops = deque(), Loops()
