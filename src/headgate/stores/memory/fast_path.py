"""The hot paths of the memory store: what `async with` and `with` cost who asks for nothing in
particular.

Here live the ways in and out that skip whatever such an entry does not need: built once for each
line, with everything they touch at hand. They say yes only where the gate would; what is not theirs
to do goes the proper way through the line.
"""

from __future__ import annotations

from asyncio import Future, _get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ref

from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.gate import Gate
from headgate.stores.memory.lock import TORN, Lock
from headgate.stores.memory.waiters import no_loop

if TYPE_CHECKING:
    from headgate.request import Request

Door = Callable[[], bool]
# Its result is a ticket of `starting`: the caller has the permit. Or it is a waiter, which the
# caller is from then on.
Place = Future[Any]
Crowd = deque[Place]
NO_WAIT = (False,)  # a ready tuple of arguments makes the call of a lock cheaper


def shut() -> bool:
    """The door of a line that has to be looked at first."""
    return False


def timed_door(
    queue: Pooled, gate: Gate, lock: Lock, now: Callable[[], int], inside: list[None] | None
) -> Door:
    """For limits that count over time: one decision under the lock. Who is `inside` is counted
    where no limit counts it.

    An exception may come wherever Python lets a signal handler run, so the stage is set before the
    call that it stands for: 1 under the lock, 2 granted under the lock, 3 released, 4 granted and
    released.
    """
    admit = gate.single[0][0].admit if len(gate.single) == 1 else gate.admit
    rules, waiting, starting = gate.rules, gate.queue, queue.starting
    # Not `with`, which costs much (benchmarks, rate-async).
    acquire, wait, release = lock.acquire, lock.wait, lock.release
    deferred = lock.deferred
    count = None if inside is None else inside.append

    def enter() -> bool:
        stage = 0
        try:
            if not acquire(*NO_WAIT):
                wait()
            if not (lock.state or waiting or starting or gate.rules is not rules):
                lock.state = stage = 1
                t = now()
                if t >= gate.t and admit(t):
                    gate.t = t
                    stage = 2
                    if count is not None:
                        count(None)
                    lock.state = 0
                    stage = 4
                    release()
                    if deferred:
                        lock.settle()
                    return True
                lock.state = 0
            stage = 3
            release()
            if deferred:
                lock.settle()
            return False
        except BaseException:
            if stage in (1, 2):
                lock.state = TORN
            if stage < 3:
                try:  # noqa: SIM105 - no call comes before the release
                    release()
                except RuntimeError:  # the exception came while this thread waited for the lock
                    pass
            if stage in (2, 4):
                queue.leave()
            raise

    return enter


def timed_exit(queue: Pooled, inside: list[None]) -> Callable[[], None]:
    """Out of limits of which an entry holds none."""
    pop = inside.pop

    def leave() -> None:
        try:
            pop()
        except IndexError:  # a concurrency limit was added just now, and counts who is inside
            queue.put_back()

    return leave


# For concurrency alone: a permit that is left goes from hand to hand, and the gate counts it as
# held all the time. A deque's and a list's appends and pops are atomic. Whoever leaves looks for
# waiters after the append to the pool, and whoever waits looks at the pool after joining the queue:
# one of the two sees the other, so no permit stays in the pool while somebody waits for it.


class Pooled(Protocol):
    """What these ways need of a line."""

    leave: Callable[[], None]
    starting: deque[
        object
    ]  # a ticket for each task that was granted its entry and has not run since

    async def enter_queue(self, request: Request) -> None: ...
    async def moved(self, place: Place, ticket: Any, request: Request) -> None: ...
    def begun(self, ticket: object) -> None: ...
    def give_place_up(self, place: Place) -> None: ...
    def put_back(self) -> None: ...
    def pass_on(self) -> None: ...
    def advance(self) -> None: ...


def pooled_door(queue: Pooled, gate: Gate, pool: list[None], crowd: Crowd, otherwise: Door) -> Door:
    """Take a permit that somebody left."""
    pop, waiting, starting = pool.pop, gate.queue, queue.starting

    def enter() -> bool:
        if crowd or waiting or starting:
            return False
        if not pool:
            return otherwise()
        try:
            pop()
        except IndexError:  # another thread was faster
            return False
        except BaseException:  # an interrupt behind it
            queue.leave()
            raise
        return True

    return enter


def pooled_queue(
    queue: Pooled, gate: Gate, pool: list[None], crowd: Crowd
) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """Wait in the crowd, if nobody waits elsewhere."""
    append, rules, starting = crowd.append, gate.rules, queue.starting
    slots = cast(
        ConcurrencyRule, gate.single[0][0]
    )  # when all that an entry touches have room, this one has

    async def enter_later(request: Request) -> None:
        if gate.queue or not request.plain:
            await queue.enter_queue(request)
            return
        if _get_running_loop() is None:
            raise no_loop()
        # Nothing more is made for it: most never need it (benchmarks, concurrency-tasks).
        place: Place = Future()
        closing, entry = request.closing, ref(place)
        try:
            try:
                closing.begin(entry)
                append(place)
                # The queue decides whether there is a wait.
                if pool or slots.used < slots.capacity or gate.rules is not rules:
                    queue.advance()
                ticket = await place
                if starting and starting[0] is ticket:
                    starting.popleft()
                    return
            except BaseException:
                queue.give_place_up(place)
                raise
            await queue.moved(place, ticket, request)
        finally:
            closing.end(entry)

    return enter_later


def pooled_exit(
    queue: Pooled, gate: Gate, lock: Lock, pool: list[None], crowd: Crowd
) -> Callable[[], None]:
    """Leave a permit to the first who waits, or to the pool."""
    append, popleft, waiting, starting = pool.append, crowd.popleft, gate.queue, queue.starting
    hand_on = held_exit(lock, queue.pass_on)

    def leave() -> None:
        if waiting:
            hand_on()
            return
        if crowd and pass_to_first():
            return
        try:
            append(None)
        finally:  # whatever interrupts it
            if crowd or waiting:
                queue.advance()

    def pass_to_first() -> bool:
        """Without the lock, to a task of this very loop."""
        here, ticket, place = _get_running_loop(), object(), None
        try:
            while crowd:
                first = crowd[0]
                if first.get_loop() is not here:
                    return False
                place = crowd[0]  # an interrupt behind the next step loses what that returns
                place = popleft()
                if place is not first and place.get_loop() is not here:  # another thread was faster
                    crowd.appendleft(place)
                    return False
                if not place.done():  # its task has not given up
                    starting.append(ticket)
                    mine, place = place, None
                    mine.set_result(ticket)
                    return True
        except IndexError:  # another thread was faster
            return False
        except BaseException:
            if place is not None:
                crowd.appendleft(place)
                queue.begun(ticket)
                append(None)
                queue.advance()
            raise
        return False

    return leave


def held_exit(lock: Lock, left: Callable[[], None]) -> Callable[[], None]:
    """Out of limits that must ask the gate what comes next."""
    append, entry, settle, catch_up = (
        lock.deferred.append,
        (lock, left),
        lock.settle,
        lock.try_to_catch_up,
    )
    deferred = lock.deferred

    def leave() -> None:
        append(entry)
        try:
            catch_up()
        except BaseException:
            settle()
            raise
        if deferred:
            settle()

    return leave
