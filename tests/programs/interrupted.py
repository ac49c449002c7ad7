"""Enters a limiter again and again while a signal handler raises at random moments. Arguments: URL,
name, way, interrupts.

Prints how many exceptions the handler has raised, how many have reached the caller, and how many
Python has ignored in a finalizer. The last number is of those raised before a block was entered,
where the way is contended. Then it lives on until its input ends: it would renew any permit that it
still held.

Where it is contended, helper threads hold both permits most of the time, so that most exceptions
arrive in a wait.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from secrets import token_hex
from threading import Event
from time import sleep

from headgate import Concurrency, Limiter, Rate

LEASE = 2.0
SHORTEST, LONGEST = 0.0003, 0.004  # seconds from one interrupt to the next
HELPERS = 3  # threads, where the way is contended
HOLDS = 0.002  # seconds for which a helper holds a permit
HANGS = 60.0  # seconds for SOME interrupts after which the program hangs
SOME = 500


class Interrupt(TimeoutError):
    """A handler raises this: an ordinary exception, and one that sockets raise, too."""


class Interrupts:
    """A timer whose handler raises, as long as the caller is ready for it."""

    def __init__(self, most: int) -> None:
        self.raised = self.ignored = self.early = 0
        self.most = most
        self.armed = False
        signal.signal(signal.SIGALRM, self._raise)
        sys.unraisablehook = self._count

    def _raise(self, number: int, frame: object) -> None:
        armed, self.armed = self.armed, False
        self.raised += armed
        self.early += armed and contended.asks
        self.again()
        if armed:
            raise Interrupt

    def _count(self, unraisable: sys.UnraisableHookArgs) -> None:
        """The collector runs finalizers in any code, those of redis-py too.

        Python lets none of them raise.
        """
        if isinstance(unraisable.exc_value, Interrupt):
            self.ignored += 1
        else:
            sys.__unraisablehook__(unraisable)

    def again(self) -> None:
        if self.raised < self.most:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(SHORTEST, LONGEST))


def block(limiter: Limiter) -> None:
    with limiter:
        sleep(0.001)


class Contended:
    """`block`, and whether it has not been entered yet."""

    asks = False

    def __call__(self, limiter: Limiter) -> None:
        self.asks = True
        with limiter:
            self.asks = False
            sleep(0.0005)


contended = Contended()


@contextmanager
def contention(limiter: Limiter, helpers: int) -> Iterator[None]:
    """So many threads hold permits again and again. An error of one is raised here."""
    over = Event()

    def hold() -> None:
        while not over.is_set():
            with limiter:
                sleep(HOLDS)

    with ThreadPoolExecutor(max(helpers, 1)) as threads:
        held = [threads.submit(hold) for _ in range(helpers)]
        try:
            yield
        finally:
            over.set()
        for each in held:
            each.result()


def exit_stack(limiter: Limiter) -> None:
    with ExitStack() as stack:
        stack.enter_context(limiter)
        sleep(0.001)


def acquired_block(limiter: Limiter) -> None:
    with limiter.acquire():
        sleep(0.001)


def acquire_sync(limiter: Limiter) -> None:
    permit = limiter.acquire_sync()
    try:
        sleep(0.001)
    finally:
        permit.release()


def try_acquire(limiter: Limiter) -> None:
    permit = limiter.try_acquire()
    if permit:
        permit.release()


def new_key(limiter: Limiter) -> None:
    """Enter a new key twice: the second time opens the threads' connection, if it is closed."""
    new = limiter[token_hex(8)]
    for _ in range(2):
        with new:
            sleep(0.0005)


def decorated(limiter: Limiter) -> None:
    limiter(sleep)(0.001)


def status(limiter: Limiter) -> None:
    limiter.status()


MANY = Rate(1_000_000, 1.0)
WAYS: dict[str, tuple[Callable[[Limiter], None], list[Rate | Concurrency]]] = {
    "with, a rate": (block, [MANY]),
    "with, a rate and a concurrency": (block, [MANY, Concurrency(5, lease=LEASE)]),
    "ExitStack": (exit_stack, [MANY, Concurrency(5, lease=LEASE)]),
    "with acquire()": (acquired_block, [Concurrency(5, lease=LEASE)]),
    "acquire_sync": (acquire_sync, [Concurrency(5, lease=LEASE)]),
    "try_acquire": (try_acquire, [Concurrency(5, lease=LEASE)]),
    "new keys": (new_key, [MANY, Concurrency(1, lease=LEASE)]),
    "decorator": (decorated, [Concurrency(5, lease=LEASE)]),
    "status": (status, [Concurrency(5, lease=LEASE)]),
    "contended": (contended, [Concurrency(2, lease=LEASE)]),
}


def main(url: str, name: str, way: str, most: int) -> None:
    visit, limits = WAYS[way]
    limiter = Limiter(name, *limits, store=url)
    limiter.status()
    faulthandler.dump_traceback_later(HANGS, exit=True)
    interrupts, caught = Interrupts(most), 0
    with contention(limiter, HELPERS if visit is contended else 0):
        interrupts.again()
        while interrupts.raised < most:
            try:
                while interrupts.raised < most:
                    interrupts.armed = True
                    visit(limiter)
            except Interrupt:
                caught += 1
                if caught % SOME == 0:
                    faulthandler.dump_traceback_later(HANGS, exit=True)
        interrupts.armed = False
    faulthandler.cancel_dump_traceback_later()
    # ExitStack refers to an exception that comes while it leaves, and the exception to it.
    gc.collect()
    print(interrupts.raised, caught, interrupts.ignored, interrupts.early, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
