"""A main thread, or a thread of its own, in which exceptions arrive at random moments while it uses
a limiter in memory.

It prints its counts. The first are the exceptions raised, and those that arrived, alone or as the
context of a later one. Then come those that Python ignored because they met the finalizer of a
dropped permit or acquire. The last are the permits that leaked, and those of a threading.Semaphore
that the same thread uses in turn. An interrupt may leave a Semaphore's lock locked; a new one takes
its place then. Then come the turns, and the exceptions raised before the body of a turn.

Where the limiter is contended, helper threads hold its two permits most of the time, so that most
exceptions arrive in a wait. A leak would leave one permit, or none: a new limiter takes its place.

usage: interrupts.py alarm|thread way interrupts seconds_inside
"""

from __future__ import annotations

import ctypes
import gc
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack

from headgate import Concurrency, Limiter, Rate, Window
from headgate.limiter import Unused
from headgate.permit import Held
from headgate.stores.memory.store import MemoryStore

MANY = 10**6
LIMITS = {
    "rate": [Rate(10**9, per=1)],
    "window": [Window(10**8, per=60)],
    "concurrency": [Concurrency(MANY)],
    "both": [Concurrency(MANY), Rate(10**9, per=1)],
    "contended": [Concurrency(2)],
}
HELPERS = 3  # threads, where the limiter is contended
HOLDS = 0.0005  # seconds for which a helper holds a permit


class Interrupt(Exception):
    """The exception that arrives."""


FINALIZERS = Held.__del__, Unused.__del__


class Uses:
    """The ways in and out, each once a turn."""

    def __init__(self, limits: str, inside: float) -> None:
        self.limits = LIMITS[limits]
        self.peer = threading.Semaphore(MANY)
        self.limiter_leaks = self.peer_leaks = self.turns = 0
        self.inside = inside
        self.armed = False  # whether an exception may come
        self.asks = False  # whether the turn has not reached its body yet
        self.ignored: set[int] = (
            set()
        )  # the numbers of exceptions that met the finalizer of a permit or an acquire
        self.begin()
        self.helpers = [Helper(self) for _ in range(HELPERS if limits == "contended" else 0)]

    def begin(self) -> None:
        """With a limiter of which no permit is taken."""
        self.limiter = Limiter("api", *self.limits, store=MemoryStore())
        self._function = self.limiter(self.body)

    def body(self) -> None:
        self.asks = False
        if self.inside:
            time.sleep(self.inside)

    def block(self) -> None:
        with self.limiter:
            self.body()

    def acquire(self) -> None:
        with self.limiter.acquire():
            self.body()

    def acquire_sync(self) -> None:
        with self.limiter.acquire_sync():
            self.body()

    def try_acquire(self) -> None:
        if permit := self.limiter.try_acquire():
            with permit:
                self.body()

    def decorator(self) -> None:
        self._function()

    def settle(self) -> None:
        permit = self.limiter.acquire_sync()
        for _ in range(100):
            permit.settle(requests=1)

    def turn(self, way: Callable[[], None]) -> None:
        self.asks = True
        way()
        with self.peer:
            self.body()
        self.turns += 1

    def count_ignored(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Count an exception that Python prints, because a finalizer has no caller."""
        if unraisable.object in FINALIZERS:
            self.ignored |= numbers_in(unraisable.exc_value)
        else:
            sys.__unraisablehook__(unraisable)

    def renew_peer(self) -> None:
        if self.peer._cond.acquire(False):  # type: ignore[attr-defined]  # nothing says whether it still works
            self.peer._cond.release()  # type: ignore[attr-defined]  # as above
        else:
            self.peer_leaks += MANY - self.peer._value
            self.peer = threading.Semaphore(MANY)

    def renew_contended(self) -> None:
        """While no helper is inside or waits, count what is taken nevertheless. Go on when they
        wait for each other again.
        """
        if not self.helpers:
            return
        with ExitStack() as stack:
            for helper in self.helpers:
                stack.enter_context(helper.turn)
            if self.limiter.status().limits[0].used and (leaks := self.leaks()):
                self.limiter_leaks += leaks
                self.begin()
        while not self.limiter.status().waiting:
            time.sleep(HOLDS / 10)

    def end(self) -> None:
        for helper in self.helpers:
            helper.end()

    def leaks(self) -> int:
        gc.collect()  # a permit that an interrupt dropped goes back when it is collected
        status = self.limiter.status()
        assert status.waiting == 0
        return sum(limit.used for limit in status.limits if limit.kind == "Concurrency")


class Helper:
    """A thread that holds a permit again and again. Between two of its turns, others may stop
    it.
    """

    def __init__(self, uses: Uses) -> None:
        self.turn = threading.Lock()
        self._uses = uses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.is_set():
            with self.turn, self._uses.limiter:
                time.sleep(HOLDS)
            time.sleep(0)  # another thread may take the turn

    def end(self) -> None:
        assert self._thread.is_alive(), "a helper has had an error"
        self._over.set()
        self._thread.join(20)
        assert not self._thread.is_alive(), "a helper hangs"


def numbers_in(error: BaseException | None) -> set[int]:
    """The numbers of `error` and its contexts: an interrupt that comes while another one passes
    through has it as its context.
    """
    if error is None:
        return set()
    return (
        {*error.args} | numbers_in(error.__context__)
        if isinstance(error, Interrupt)
        else numbers_in(error.__context__)
    )


def run_until(uses: Uses, way: Callable[[], None], over: Callable[[], bool]) -> set[int]:
    """Return the numbers of the interrupts that came out of the calls."""
    caught: set[int] = set()
    while not over():
        try:
            uses.armed = True
            while not over():
                uses.turn(way)
            uses.armed = False
        except Interrupt as error:
            uses.armed = False
            caught |= numbers_in(error)
        # The error is gone by now: its traceback would keep a dropped permit alive.
        uses.renew_peer()
        uses.renew_contended()
    return caught


def by_alarm(uses: Uses, way: Callable[[], None], interrupts: int) -> tuple[int, int, int]:
    chance, raised, early = random.Random(interrupts), 0, 0

    def interrupt(*_: object) -> None:
        nonlocal raised, early
        if raised < interrupts:
            signal.setitimer(
                signal.ITIMER_REAL, chance.uniform(0.0003, 0.004 if uses.inside else 0.001)
            )
        if uses.armed and raised < interrupts:
            error = Interrupt(raised + 1)
            raised += 1  # another signal cannot come between this and the raise
            early += uses.asks
            try:
                raise error
            finally:
                # Or the error and this frame would know each other, and keep the interrupted
                # objects.
                del error

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    caught = run_until(uses, way, lambda: raised >= interrupts)
    return raised, len(caught - uses.ignored), early


def by_thread(uses: Uses, way: Callable[[], None], interrupts: int) -> tuple[int, int, int]:
    """PyThreadState_SetAsyncExc, as time limits of job queues use it.

    A second one replaces one that has not arrived. No place is counted: it arrives later.
    """
    chance, caught, over = random.Random(interrupts), 0, threading.Event()

    def work() -> None:
        nonlocal caught
        while not over.is_set():
            try:
                while not over.is_set():
                    uses.turn(way)
            except Interrupt:
                caught, renewed = caught + 1, False
                while not renewed:  # an interrupt in the midst of it leaves the peer's lock locked
                    try:
                        uses.renew_peer()
                        renewed = True
                    except Interrupt:
                        caught += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for _ in range(interrupts):
        time.sleep(chance.uniform(0.0003, 0.002))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt)
        )
    over.set()
    thread.join(20)
    where = sys._current_frames().get(thread.ident or 0)
    assert not thread.is_alive(), f"it hangs: {''.join(traceback.format_stack(where))}"
    return interrupts, caught, 0


def main(how: str, which: str, interrupts: str, inside: str) -> None:
    limits, _, way = which.partition("-")
    uses = Uses(limits, float(inside))
    sys.unraisablehook = uses.count_ignored
    warnings.simplefilter("ignore")  # of a permit that an interrupt dropped, which goes back
    raised, caught, early = (by_alarm if how == "alarm" else by_thread)(
        uses, getattr(uses, way), int(interrupts)
    )
    uses.end()
    with uses.limiter:
        print(
            raised,
            caught,
            len(uses.ignored),
            uses.limiter_leaks + uses.leaks(),
            uses.peer_leaks + MANY - uses.peer._value,
            uses.turns,
            early,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
