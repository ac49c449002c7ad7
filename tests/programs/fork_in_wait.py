"""Forks while a thread waits. Prints the error in the child, and what child and parent see
afterwards.

usage: fork_in_wait.py memory|URL NAME HOW
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from headgate import Concurrency, Limiter, Permit
from tests.processes import PATIENCE

MAIN = threading.main_thread()


class Story:
    """The main thread waits for a permit that the process holds, and a fork comes meanwhile."""

    def __init__(self, store: str, name: str, how: str) -> None:
        where = None if store == "memory" else store
        self.how = how
        self.in_child = False
        self.come: set[signal.Signals] = set()
        self.limiter = Limiter(
            name, Concurrency(2), store=where, on_store_error="open" if how == "open" else "raise"
        )
        self.other = Limiter(f"{name}-other", Concurrency(1), store=where)
        self.held = [self.other.acquire_sync(), self.limiter.acquire_sync(permits=2)]
        self.said, self.says = os.pipe()
        self.seen_by_child = threading.Event()
        self.threads: list[threading.Thread] = []
        self.code = -1

    def start(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()

    def fork(self, *_: object) -> None:
        child = os.fork()
        if child:
            self.start(lambda: self.end_waits_behind(child))
        else:
            self.in_child = True
            faulthandler.dump_traceback_later(PATIENCE, exit=True)

    def end_waits_behind(self, child: int) -> None:
        """In the parent: release when the child has seen the waiters, or has ended."""
        os.close(self.says)
        os.read(self.said, 1)
        self.seen_by_child.set()
        self.release()
        self.code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def release(self) -> None:
        for permit in self.held:
            permit.release()

    def fork_behind_the_grant(self, _: object) -> None:
        self.release()
        while self.limiter.status().waiting:
            time.sleep(0.001)
        self.fork()

    def signal_when_one_waits(self, limiter: Limiter, number: signal.Signals) -> None:
        while not limiter.status().waiting:
            time.sleep(0.001)
        while (
            number not in self.come
        ):  # Python sees no signal that comes just before a thread begins to wait
            signal.pthread_kill(MAIN.ident or 0, number)
            time.sleep(0.001)

    def handle(self, number: signal.Signals, act: Callable[[], object]) -> None:
        """Do `act` when the signal comes for the first time."""

        def handler(*_: object) -> None:
            if number not in self.come:
                self.come.add(number)
                act()

        signal.signal(number, handler)

    def wait_in_handler(self) -> None:
        """Wait inside a wait, and fork there."""
        self.start(lambda: self.signal_when_one_waits(self.other, signal.SIGUSR2))
        try:
            self.other.acquire_sync().release()
        except RuntimeError as error:
            print("handler:", error, flush=True)

    def wait(self) -> None:
        self.handle(signal.SIGUSR1, self.wait_in_handler if self.how == "nested" else self.fork)
        self.handle(signal.SIGUSR2, self.fork)
        if self.how == "on_wait":
            self.use(self.limiter.acquire_sync(permits=2, on_wait=self.fork))
        elif self.how == "granted":
            self.use(self.limiter.acquire_sync(permits=2, on_wait=self.fork_behind_the_grant))
        elif self.how == "task":
            asyncio.run(self.wait_in_task())
        else:
            self.start(lambda: self.signal_when_one_waits(self.limiter, signal.SIGUSR1))
            if self.how == "permits":
                self.use(self.limiter.acquire_sync(permits=2))
            else:
                with self.limiter:
                    pass

    async def wait_in_task(self) -> None:
        try:
            self.use(await self.limiter.acquire(permits=2, on_wait=self.fork))
        except RuntimeError as error:
            self.go_on_in_child(error)

    def use(self, permit: Permit) -> None:
        assert not self.in_child, "the child has what its parent waited for"
        self.seen_by_child.wait()
        permit.release()

    def go_on_in_child(self, error: RuntimeError) -> None:
        if not self.in_child:
            raise error
        print("child:", error, flush=True)
        print("child sees", self.seen(), flush=True)
        os.write(self.says, b"\0")
        with self.limiter.acquire(permits=2):
            self.release()  # of the parent's: nothing of it comes back
            print("child inside", self.limiter.status().limits[0].used, flush=True)
        self.limiter.flush()
        os._exit(0)

    def seen(self) -> str:
        status = self.limiter.status()
        return f"{status.limits[0].used} used, {status.waiting} waiting"

    def tell(self) -> None:
        try:
            self.wait()
        except RuntimeError as error:
            self.go_on_in_child(error)
        assert not self.in_child, "the child has been where its parent waited to be"
        for thread in self.threads:
            thread.join()
        print("parent", self.code, self.seen())


if __name__ == "__main__":
    Story(*sys.argv[1:]).tell()
