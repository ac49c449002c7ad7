"""The lock of a memory queue. Code that interrupts its holder cannot break the state or deadlock.

Signal handlers, finalizers and asynchronous exceptions run in the thread that has the lock, between
two steps of locked code.

- They may call the same queue, so the lock is reentrant. A call that need not answer is deferred
  until the lock is released. A call that has to answer raises `Reentered`.
- They may raise. Python runs them only when a function begins, after a call of a C function, and
  when a loop turns. It also runs them in products and quotients of large integers. Locked code is
  written in steps that take effect whole or not at all. `repair` makes the state consistent.

One lock serves all queues of the process. With two locks, two threads could wait for each other:
each inside one queue, each calling the other's from a finalizer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from headgate.keys import title

T = TypeVar("T")
A = TypeVar("A")
# Torn: an exception left the locked code in the middle, and `repair` has not run yet.
FREE, BUSY, TORN = 0, 1, 2
# Exceptions after which a caller stops running deferred calls. The next caller runs the rest.
ATTEMPTS = 100
# Deferred calls beyond which the threads that make them wait for the one that runs them.
MOST_DEFERRED = 100
CHECK_AGAIN = 0.1  # seconds between a waiting thread's looks at the lock
GIVE_WAY = 0.001  # seconds for which a thread that defers one more call waits


class RawLock(Protocol):
    """`release` raises RuntimeError in a thread that does not have the lock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


class Reentered(RuntimeError):
    def __init__(self, limiter: str) -> None:
        super().__init__(
            f"A signal handler or a finalizer has interrupted this thread inside {limiter}, and "
            "cannot acquire it there: the acquire would wait for itself. Call try_acquire(), "
            "which is refused then, or acquire later, outside the handler."
        )


Deferred = deque[tuple["Lock", Callable[[], None]]]
GUARD = threading.RLock()
DEFERRED: Deferred = deque()


class Lock:
    """The shared lock as one queue uses it. `repair` may run at any time, and again."""

    __slots__ = ("acquire", "crowded", "deferred", "name", "release", "repair", "state")

    def __init__(self, name: str, repair: Callable[[], None], lock: RawLock | None = None) -> None:
        its: RawLock = GUARD if lock is None else lock
        self.name = name
        self.acquire, self.release = its.acquire, its.release
        self.deferred: Deferred = DEFERRED if lock is None else deque()
        self.repair = repair
        self.state = FREE
        # The thread that has the lock has run very many deferred calls: other threads give way.
        self.crowded = False

    def run(self, act: Callable[[A], T], argument: A) -> T:
        """`act(argument)`, under the lock. Raises Reentered when this thread is inside already."""
        inside = False
        try:
            if not self.acquire(False):
                self.wait()
            if self.state == BUSY:
                raise Reentered(title(self.name))
            torn, self.state, inside = self.state, BUSY, True
            if torn:
                self.repair()
            if self.deferred:
                self._run_own()
            result = act(argument)
        except BaseException:
            if inside:  # Python runs nothing between here and the release
                self.state = TORN
            try:  # noqa: SIM105 - no call comes before the release
                self.release()
            except RuntimeError:  # the exception came while this thread waited for the lock
                pass
            if inside:
                self.run_all_deferred()
            raise
        self.state = FREE
        self.release()
        if self.deferred:
            self.run_all_deferred()
        return result

    def wait(self) -> None:
        """Acquire the lock when its thread releases it.

        A fork in this wait renews the lock. The next attempt then finds it free.
        """
        while not self.acquire(True, CHECK_AGAIN):
            pass

    def forked(self, disown: Callable[[], None]) -> None:
        """In the child of a fork: run `disown` under the lock.

        - Another thread was inside. Its step never ends in the child, so its state is of no use:
          `disown` runs before all deferred calls.
        - This thread is inside, and a signal handler has forked. The step ends first.
        - No thread is inside. `disown` runs after all deferred calls.
        """
        if self.state and not self.is_held_here():
            self.state = FREE
            self.deferred.appendleft((self, disown))
        else:
            self.deferred.append((self, disown))
        if self.state != BUSY:
            self.run_all_deferred()

    def run_or_defer(self, act: Callable[[], None]) -> None:
        """Have `act` run under the lock, now or by the thread that has it.

        It waits for the lock only while very many calls are deferred, and for GIVE_WAY at most.

        `act` must be a Python function: no signal handler runs when it returns. It must take effect
        in its last step: after an exception before that, it runs again.
        """
        self.deferred.append((self, act))
        if len(self.deferred) > MOST_DEFERRED or self.crowded:
            self._give_way()
        try:
            self.run_own_deferred()
        except BaseException:
            self.run_all_deferred()
            raise
        if self.deferred:
            self.run_all_deferred()

    def _give_way(self) -> None:
        """Let the thread that has the lock run all deferred calls, and go on with its own work.

        Code that has interrupted locked code does not wait. A thread waits for GIVE_WAY at most.
        """
        if self.is_held_here():
            return
        try:
            if self.acquire(True, GIVE_WAY):
                self.release()
        except BaseException:
            try:  # noqa: SIM105 - as in run
                self.release()
            except RuntimeError:
                pass
            raise

    def run_all_deferred(self, attempts: int = ATTEMPTS) -> None:
        """Run the deferred calls of all queues, and raise an exception that comes meanwhile.

        If it comes before the first line of this method, the next caller runs them.
        """
        lock: Lock | None = self
        rounds = 0
        try:
            while lock is not None and lock.run_own_deferred():
                # A queue that has deferred calls and is not busy.
                lock = next((lock for lock, _ in tuple(self.deferred) if lock.state != BUSY), None)
                rounds += 1
                if lock is not None and rounds >= MOST_DEFERRED:
                    lock.crowded = True
        except BaseException:
            if attempts:
                self.run_all_deferred(attempts - 1)
            raise

    def run_own_deferred(self) -> bool:
        """Run this queue's deferred calls. Each leaves the list in the step after its effect.

        False: the queue is busy, and the thread that is inside runs them.
        """
        inside = has = False
        try:
            has = self.acquire(False)
            if has and self.state != BUSY:
                torn, self.state, inside = self.state, BUSY, True
                if torn:
                    self.repair()
                self._run_own()
        except BaseException:
            if inside:
                self.state = TORN
            try:  # noqa: SIM105 - as in run
                self.release()
            except RuntimeError:
                pass
            raise
        if inside:
            self.state = FREE
        if has:
            self.release()
        return inside

    def _run_own(self) -> None:
        deferred, count = self.deferred, 0
        while deferred and deferred[0][0] is self:
            act = deferred[0][1]
            act()
            del deferred[0]
            count += 1
            if count == MOST_DEFERRED:
                self.crowded = True
        self.crowded = False
        # This queue's other calls may stand behind those of busy queues.
        while deferred and (entry := self._first()) is not None:
            act = entry[1]
            act()
            deferred.remove(entry)

    def _first(self) -> tuple[Lock, Callable[[], None]] | None:
        return next((entry for entry in tuple(self.deferred) if entry[0] is self), None)

    def is_held_here(self) -> bool:
        """Whether this thread has the shared lock. Blocking here would block every queue.

        A test may give this object a lock of its own.
        """
        return self.deferred is DEFERRED and has_lock()


def has_lock() -> bool:
    """Whether this thread has the shared lock.

    If so, a caller outside this module has interrupted locked code.
    """
    # threading.Condition asks in the same way.
    return bool(GUARD._is_owned())  # type: ignore[attr-defined]


def forget_all() -> None:
    """In the child of a fork: take the lock from the threads of the parent.

    A signal handler may have forked in the middle of locked code. That code goes on in the child,
    so this thread keeps the lock. If the handler interrupted `Lock.wait`, that goes on and finds a
    free lock.
    """
    if has_lock():
        # threading.Condition and the standard library's own locks do the same.
        held = GUARD._release_save()  # type: ignore[attr-defined]
        GUARD._at_fork_reinit()  # type: ignore[attr-defined]
        GUARD._acquire_restore(held)  # type: ignore[attr-defined]
    elif GUARD.acquire(blocking=False):  # no thread has it, so it stays as it is
        GUARD.release()
    else:
        GUARD._at_fork_reinit()  # type: ignore[attr-defined]
