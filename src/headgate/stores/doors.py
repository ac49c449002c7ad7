"""The hot paths of the memory store: what `async with` and `with` cost who asks for nothing in particular.

Here live the ways in and out that skip whatever such an entry does not need: built once for each line, with everything they touch
at hand. They say yes only where the gate would; what is not theirs to do goes the proper way through the line.
"""

from __future__ import annotations

from asyncio import Future, _get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.gate.gate import Gate
from headgate.gate.slots import Slots
from headgate.stores.lock import Lock
from headgate.stores.waiters import no_loop

if TYPE_CHECKING:
    from headgate.request import Request

Door = Callable[[], bool]
Place = Future[Any]  # done with None: the permit is yours; with a waiter: that is you now, look at it
Crowd = deque[Place]


def shut() -> bool:
    """The door of a line that has to be looked at first."""
    return False


def timed_door(gate: Gate, lock: Lock, now: Callable[[], int], inside: list[None] | None) -> Door:
    """For limits that count over time: one decision under the lock. Who is `inside` is counted where no limit counts it."""
    admit = gate.single[0][0].admit if len(gate.single) == 1 else gate.admit
    rules = gate.rules
    acquire, release, brought = lock.acquire, lock.release, lock.brought  # not `with`, which costs much (benchmarks, rate-async)
    count = None if inside is None else inside.append

    def enter() -> bool:
        acquire()
        try:
            t = now()
            if gate.queue or t < gate.t or gate.rules is not rules or not admit(t):
                return False
            gate.t = t
            if count is not None:
                count(None)
            return True
        finally:
            release()
            if brought:
                lock.see_to_it()

    return enter


def timed_exit(line: Pooled, inside: list[None]) -> Callable[[], None]:
    """Out of limits of which an entry holds none."""
    pop = inside.pop

    def leave() -> None:
        try:
            pop()
        except IndexError:  # a concurrency limit was added just now, and counts who is inside
            line.put_back()

    return leave


# For concurrency alone: a permit that is left goes from hand to hand, and the gate counts it as held all the time. A deque's and a
# list's appends and pops are atomic. Whoever leaves looks for waiters after the append to the pool, and whoever waits looks at the
# pool after joining the queue: one of the two sees the other, so no permit stays in the pool while somebody waits for it.


class Pooled(Protocol):
    """What these ways need of a line."""

    async def queue(self, request: Request) -> None: ...
    async def moved(self, place: Place, waiter: Any) -> None: ...
    def give_place_up(self, place: Place) -> None: ...
    def give(self, place: Place) -> None: ...
    def put_back(self) -> None: ...
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
    slots = cast(Slots, gate.single[0][0])  # when all that an entry touches have room, this one has

    async def enter_later(request: Request) -> None:
        if gate.queue or not request.plain:
            await line.queue(request)
            return
        if _get_running_loop() is None:
            raise no_loop()
        place: Place = Future()  # nothing more is made for it: most never need it (benchmarks, concurrency-tasks)
        try:
            append(place)
            if pool or slots.used < slots.capacity or gate.rules is not rules:  # not for us to know whether there is a wait
                line.advance()
            waiter = await place
        except BaseException:
            line.give_place_up(place)
            raise
        if waiter is not None:
            await line.moved(place, waiter)

    return enter_later


def pooled_exit(line: Pooled, gate: Gate, pool: list[None], crowd: Crowd) -> Callable[[], None]:
    """Leave a permit to the first who waits, or to the pool."""
    append, popleft = pool.append, crowd.popleft

    def leave() -> None:
        if gate.queue:
            if line.hand_over():
                return
        else:
            here = _get_running_loop() if crowd else None
            while crowd:
                try:
                    place = popleft()
                except IndexError:  # another thread was faster
                    break
                if place.get_loop() is not here:
                    line.give(place)
                    return
                if not place.done():  # its task has not given up
                    place.set_result(None)
                    return
        append(None)
        if crowd or gate.queue:
            line.advance()

    return leave
