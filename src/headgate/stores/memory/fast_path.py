"""The fast path of the memory store: `async with` and `with` for one permit without options.

The functions admit only where the gate would. If one declines, the caller asks the queue. Each
queue builds them anew when its limits change.
"""

from __future__ import annotations

from asyncio import Future, _get_running_loop
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from headgate.counts import note_refusal, reason_of
from headgate.gate.concurrency import ConcurrencyRule
from headgate.stores.loops import no_loop
from headgate.stores.memory.lock import BUSY, FREE, TORN, Lock
from headgate.stores.memory.wait_queue import WaitQueue

if TYPE_CHECKING:
    from headgate.counts import Counts
    from headgate.request import Request
    from headgate.stores.memory.acquires import Acquires

Enter = Callable[[], bool]
# The stages of an entry, for its `except`.
BEGUN = 0  # the lock is not known to be held
LOCKED = 1
GRANTED = 2  # and locked
DECLINED = 3  # and released
ENTERED = 4  # granted and released
# Tuples made once: under the lock, a new object could start the garbage collector.
INSIDE, RELEASED, GRANTS = (LOCKED, GRANTED), (DECLINED, ENTERED), (GRANTED, ENTERED)
NO_WAIT = (False,)  # a ready tuple of arguments makes the call of a lock cheaper


def not_at_once() -> bool:
    """The entry of a queue that has no fast path now."""
    return False


def build_locked_enter(
    queue: Acquires,
    waiters: WaitQueue,
    lock: Lock,
    now: Callable[[], int],
    counts: Counts | None,
) -> Enter:
    """One decision under the lock. It adds to `counts`, if there are any.

    An exception may come wherever Python runs a signal handler. `stage` says what `except` then has
    to undo.
    """
    gate, holders = waiters.gate, waiters.holders
    rules, waiting, starting = gate.rules, gate.queue, waiters.starting
    admit = rules.single[0][0].admit if len(rules.single) == 1 else rules.admit
    # Not `with`, which costs much (benchmarks, rate-async).
    acquire, wait, release = lock.acquire, lock.wait, lock.release
    deferred = lock.deferred
    count = None if holders.counted else holders.inside.append

    def enter() -> bool:
        stage = BEGUN
        try:
            if not acquire(*NO_WAIT):
                wait()
            if not (lock.state or waiting or starting or gate.rules is not rules):
                lock.state, stage = BUSY, LOCKED
                t = now()
                if t >= gate.t and admit(t):
                    gate.t = t
                    stage = GRANTED
                    if count is not None:
                        count(None)
                    lock.state, stage = FREE, ENTERED
                    if counts is not None:
                        counts.passed += 1
                    release()
                    if deferred:
                        lock.run_all_deferred()
                    return True
                lock.state = FREE
            stage = DECLINED
            release()
            if deferred:
                lock.run_all_deferred()
            return False
        except BaseException:
            if stage in INSIDE:
                lock.state = TORN
            if stage not in RELEASED:
                try:  # noqa: SIM105 - no call comes before the release
                    release()
                except RuntimeError:  # the exception came while this thread waited for the lock
                    pass
            if stage in GRANTS:
                queue.leave()
            raise

    return enter


def build_uncounted_leave(queue: Acquires, inside: list[None]) -> Callable[[], None]:
    """For limits that count no permits of blocks."""
    pop = inside.pop

    def leave() -> None:
        try:
            pop()
        except IndexError:  # a concurrency limit was added just now, and counts those inside
            queue.release_one()

    return leave


# For concurrency alone: callers pass a released permit on, and the gate counts it as held all the
# time. Appends and pops of a deque or a list are atomic. A leaving caller looks for waiters after
# its append to the pool. A waiter looks at the pool after it has joined the queue. One of the two
# sees the other, so no permit stays in the pool while a caller waits for it.


def build_pooled_enter(queue: Acquires, waiters: WaitQueue, otherwise: Enter) -> Enter:
    pool, futures, starting = waiters.holders.pool, waiters.local.futures, waiters.starting
    pop, waiting = pool.pop, waiters.gate.queue

    def enter() -> bool:
        if futures or waiting or starting:
            return False
        if not pool:
            return otherwise()
        try:
            pop()
        except IndexError:  # another thread was faster
            return False
        except BaseException:  # an interrupt after the pop
            queue.leave()
            raise
        return True

    return enter


Build = Callable[["Acquires", WaitQueue, Enter], Enter]


def counted_enter() -> tuple[Build, Callable[[], int]]:
    """Two functions of one queue. The first is like `build_pooled_enter`, and counts the entries.
    The second returns the number of entries since its last call.

    The count is a local variable, because an attribute would cost twice as much (benchmarks,
    telemetry). All the functions that are built share it: a thread may still use an earlier one.
    They pop without a look at the pool, which saves half of the cost of the count.
    """
    passed = 0

    def build(queue: Acquires, waiters: WaitQueue, otherwise: Enter) -> Enter:
        futures, starting = waiters.local.futures, waiters.starting
        pop, waiting = waiters.holders.pool.pop, waiters.gate.queue

        def enter() -> bool:
            nonlocal passed
            if futures or waiting or starting:
                return False
            try:
                pop()
            except IndexError:
                return otherwise()
            except BaseException:  # an interrupt after the pop
                queue.leave()
                raise
            passed += 1
            return True

        return enter

    def take_count() -> int:
        nonlocal passed
        taken, passed = passed, 0
        return taken

    return build, take_count


def build_pooled_wait(
    queue: Acquires, waiters: WaitQueue, now: Callable[[], int], counts: Counts | None
) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """Wait among the local waiters, if no caller waits in the gate's queue."""
    pool, append, starting = waiters.holders.pool, waiters.local.futures.append, waiters.starting
    gate, rules = waiters.gate, waiters.gate.rules
    # The check below looks at this limit alone. If it has no room, the others do not matter.
    rule = cast(ConcurrencyRule, rules.single[0][0])

    async def enter_waiting(request: Request) -> None:
        if gate.queue or not request.plain:
            await queue.enter_queue(request)
            return
        if _get_running_loop() is None:
            raise no_loop()
        # Most waiters need no more than a future (benchmarks, concurrency-tasks).
        future: Future[Any] = Future()
        closing, entry = request.closing, ref(future)  # see `Closing`
        since, noted = 0 if counts is None else now(), False
        try:
            try:
                closing.add_waiting(entry)
                append(future)
                # If there may be room, the queue decides.
                if pool or rule.used < rule.capacity or gate.rules is not rules:
                    queue.advance()
                result = await future
                if counts is not None:
                    noted = True
                    queue.note_local(result, since)
                if starting and starting[0] is result:
                    starting.popleft()
                    return
            except BaseException as error:
                try:
                    queue.give_up_future(future)
                finally:  # a signal handler can raise before its first line
                    queue.give_up_future(future)
                if counts is not None and not noted:
                    note_refusal(counts, queue.name, reason_of(error), (now() - since) / 1_000_000)
                raise
            await queue.continue_migrated(future, result, request, since)
        finally:
            closing.discard_waiting(entry)

    return enter_waiting


def build_pooled_leave(queue: Acquires, waiters: WaitQueue, lock: Lock) -> Callable[[], None]:
    """Leave a permit to the first waiter, or to the pool."""
    futures, starting, waiting = waiters.local.futures, waiters.starting, waiters.gate.queue
    append, popleft = waiters.holders.pool.append, futures.popleft
    hand_on = build_held_leave(lock, waiters.hand_to_head)

    def leave() -> None:
        if waiting:
            hand_on()
            return
        if futures and pass_to_first():
            return
        try:
            append(None)
        finally:  # an interrupt may come after the append
            if futures or waiting:
                queue.advance()

    def pass_to_first() -> bool:
        """Without the lock, to a task of this very loop."""
        here, marker, future = _get_running_loop(), object(), None
        try:
            while futures:
                first = futures[0]
                if first.get_loop() is not here:
                    return False
                # An interrupt after popleft() loses its result. Then `except` has this one.
                future = futures[0]
                future = popleft()
                if future is not first and future.get_loop() is not here:
                    futures.appendleft(future)  # another thread was faster
                    return False
                if not future.done():  # its task has not given up
                    starting.append(marker)
                    mine, future = future, None  # from here on `except` puts nothing back
                    mine.set_result(marker)
                    return True
        except IndexError:  # another thread was faster
            return False
        except BaseException:
            if future is not None:  # its task waits again, and the queue decides
                futures.appendleft(future)
                waiters.forget_marker(marker)
                append(None)
                queue.advance()
            raise
        return False

    return leave


def build_held_leave(lock: Lock, release: Callable[[], None]) -> Callable[[], None]:
    """For limits whose next caller the gate has to choose."""
    # This is `lock.run_or_defer`, written out because a call of it takes a fifth longer
    # (benchmarks, concurrency-threads).
    deferred, append, entry = lock.deferred, lock.deferred.append, (lock, release)
    run_all, run_own = lock.run_all_deferred, lock.run_own_deferred

    def leave() -> None:
        append(entry)
        try:
            run_own()
        except BaseException:
            run_all()
            raise
        if deferred:
            run_all()

    return leave
