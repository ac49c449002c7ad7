"""Threads that meet where a seed says: one runs at a time, and at any opcode of headgate's own
another may take over.

This module has the scheduler, and the lock, the event and the event loop that wait in its time. A
test of several threads is the same each time that its seed is. When no thread can go on, it says so
instead of hanging. Its waits take no time: the clock jumps.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import headgate
from headgate.testing.virtual_loop import Standstill, VirtualLoop
from tests.virtual import VirtualClock

SOURCE = str(Path(headgate.__file__).parent)
PACES = (
    0.005,
    0.02,
    0.05,
    0.2,
)  # chances of another thread at each opcode: long runs meet otherwise than short ones


class Interleaving:
    """Runs `works`, each in a thread of its own, interleaved by `seed`."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = VirtualClock()
        self._pace = self.chance.choice(PACES)
        self._turns: dict[int, threading.Semaphore] = {}  # by number: the living threads
        self._here = threading.local()
        # Threads that have looked in vain since anything moved, and until when they would wait.
        self._still: dict[int, float] = {}
        self._stuck = False
        self._errors: list[BaseException] = []

    def run(self, *works: Callable[[], None]) -> None:
        """All works to their ends; the first error comes out."""
        started = threading.Barrier(len(works) + 1)
        threads = [
            threading.Thread(target=self._body, args=[started, *numbered], daemon=True)
            for numbered in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        started.wait()
        self._wake_another()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _body(self, started: threading.Barrier, number: int, work: Callable[[], None]) -> None:
        self._here.number = number
        turn = self._turns[number] = threading.Semaphore(0)
        started.wait()
        turn.acquire()
        sys.settrace(self._trace)
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        finally:
            sys.settrace(None)
            del self._turns[number]
            self._still.clear()
            self._wake_another()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.startswith(SOURCE):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._step
        return None

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and self.chance.random() < self._pace:
            self.switch()
        return self._step

    def _wake_another(self) -> None:
        if self._turns:
            self._turns[self.chance.choice(sorted(self._turns))].release()

    def switch(self) -> None:
        """The turn of a thread: perhaps this one's again."""
        number = getattr(self._here, "number", None)
        if number is None:
            return  # the test's own thread, before or after the scheduled part
        mine = self._turns[number]
        if not self._stuck:
            self._wake_another()
            mine.acquire()
        if self._stuck:
            raise Standstill("each thread waits for another")

    def wait(self, ready: Callable[[], object], until: float = float("inf")) -> None:
        """Let the others run until `ready()`, or until the moment `until` of the clock."""
        self._still.clear()
        while not ready() and self.clock.moment < until:
            self._still[self._here.number] = until
            if self._turns.keys() <= self._still.keys():
                self._let_time_pass()
            self.switch()
        self._still.clear()

    def _let_time_pass(self) -> None:
        moment = min(self._still.values())
        self._still.clear()
        if moment < float("inf"):
            self.clock.moment = max(self.clock.moment, int(moment))
            return
        self._stuck = True
        for turn in self._turns.values():
            turn.release()

    def moment(self, seconds: float | None) -> float:
        """The moment so many seconds from now, in the clock's microseconds."""
        return float("inf") if seconds is None else self.clock.moment + int(seconds * 1_000_000) + 1

    # Objects that wait in its time ----------------------------------------------------------------

    def lock(self) -> Any:
        return _Lock(self)

    def event(self) -> Any:
        return _Event(self)

    def tell(self, story: Coroutine[Any, Any, None]) -> None:
        """`asyncio.run` for a thread of this interleaving."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            runner.run(story)


class _Lock:
    def __init__(self, among: Interleaving) -> None:
        self._among = among
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            return self._lock.acquire(blocking=False)
        self._among.wait(lambda: self._lock.acquire(blocking=False))
        return True

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *outcome: object) -> None:
        self.release()


class _Event:
    def __init__(self, among: Interleaving) -> None:
        self._among = among
        self._event = threading.Event()
        self.set, self.clear = self._event.set, self._event.clear

    def wait(self, timeout: float | None = None) -> None:
        self._among.wait(self._event.is_set, self._among.moment(timeout))


class _Selector(selectors.SelectSelector):
    def __init__(self, among: Interleaving) -> None:
        super().__init__()
        self._among = among

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        look = super().select
        self._among.wait(lambda: ready.extend(look(0)) or ready, self._among.moment(timeout))
        return ready


class _Loop(VirtualLoop):
    def __init__(self, among: Interleaving) -> None:
        self.clock = among.clock
        asyncio.SelectorEventLoop.__init__(self, _Selector(among))
