"""The hot paths of the memory store: what `async with` and `with` cost who asks for nothing in particular.

Here live the ways in and out that skip whatever such an entry does not need: built once for each line, with everything they touch
at hand. They say yes only where the gate would; what is not theirs to do goes the proper way through the line.
"""

from __future__ import annotations

from asyncio import Future, InvalidStateError, _get_running_loop
from collections.abc import Callable, Coroutine
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from headgate.gate.gate import Gate
from headgate.gate.slots import Slots
from headgate.stores.crowd import Crowd, Place, send

if TYPE_CHECKING:
    from headgate.request import Request
    from headgate.stores.waiters import TaskWaiter

Door = Callable[[], bool]


def shut() -> bool:
    """The door of a line that has to be looked at first."""
    return False


def timed_door(gate: Gate, lock: Lock, now: Callable[[], int]) -> Door:
    """For limits that count over time: one decision under the lock."""
    admit = gate.single[0][0].admit if len(gate.single) == 1 else gate.admit
    acquire, release = lock.acquire, lock.release  # not `with`, which costs twice as much (benchmarks, rate-async)

    def enter() -> bool:
        acquire()
        try:
            t = now()
            if gate.queue or t < gate.t or not admit(t):
                return False
            gate.t = t
            return True
        finally:
            release()

    return enter


# For concurrency alone: a permit that is left goes from hand to hand, and the gate counts it as held all the time. A deque's and a
# list's appends and pops are atomic. Whoever leaves looks for waiters after the append to the pool, and whoever waits looks at the
# pool after joining the queue: one of the two sees the other, so no permit stays in the pool while somebody waits for it.


class Pooled(Protocol):
    """What these ways need of a line."""

    async def wait(self, request: Request) -> object: ...
    async def wait_on(self, place: Place, waiter: TaskWaiter) -> None: ...
    def forsake(self, place: Place) -> None: ...
    def hand_over(self) -> bool: ...
    def advance(self) -> None: ...


def pooled_door(gate: Gate, pool: list[None], crowd: Crowd, otherwise: Door) -> Door:
    """Take a permit that somebody left."""
    pop = pool.pop

    def enter() -> bool:
        if crowd or gate.queue:
            return False
        if not pool:
            return otherwise()
        try:
            pop()
        except IndexError:  # another thread was faster
            return False
        return True

    return enter


def pooled_queue(line: Pooled, gate: Gate, pool: list[None], crowd: Crowd) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """Wait in the crowd, if nobody waits elsewhere."""
    append, rules = crowd.append, gate.rules
    slots = next(rule for rule in rules if isinstance(rule, Slots))

    async def enter_later(request: Request) -> None:
        if gate.queue or not request.plain:
            await line.wait(request)
            return
        place: Place = Future()
        append(place)
        try:
            if pool or slots.used < slots.capacity or gate.rules is not rules:  # not for us to know whether there is a wait
                line.advance()
            waiter = await place
        except BaseException:
            line.forsake(place)
            raise
        if waiter is not None:
            await line.wait_on(place, waiter)

    return enter_later


def pooled_exit(line: Pooled, gate: Gate, pool: list[None], crowd: Crowd) -> Callable[[], None]:
    """Leave a permit to the first who waits, or to the pool."""
    append, popleft = pool.append, crowd.popleft

    def leave() -> None:
        if gate.queue:
            if line.hand_over():
                return
        else:
            here = _get_running_loop()
            while crowd:
                try:
                    place = popleft()
                    if place.get_loop() is here:
                        place.set_result(None)
                    else:
                        send(place, leave)
                    return
                except (IndexError, InvalidStateError, RuntimeError):
                    continue  # another thread was faster; its task has given up; its loop is closed
        append(None)
        if crowd or gate.queue:
            line.advance()

    return leave
