"""Virtual time, and an event loop for each simulated process.

This module decides when anything happens. The world has one list of moments, at which it wakes the
loops that asked for them. A loop can be stopped, slow or dead, and knows as little of that as a
real process does. The network brings all bytes.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

SECOND = 1_000_000  # microseconds: the world counts in these
Act = Callable[[], object]


class World:
    """The events, in order.

    Events of one moment happen in the order in which they were planned.
    """

    def __init__(self, seed: str) -> None:
        self.now = 0
        self.seed = seed
        self.here: ProcessLoop | None = None  # the process whose turn it is
        self.nobodys_time = math.inf  # by the clock of no process: every wait of one has ended
        self.complaints: list[str] = []  # the complaints that a loop's exception handler received
        self._moments: list[tuple[int, int, Act]] = []
        self._count = 0
        self._pid = 0

    def another_pid(self) -> int:
        self._pid -= 1  # no real process has such a one
        return self._pid

    def chance(self, *what: object) -> Random:
        """Chance for one purpose, which events elsewhere do not change."""
        return Random("/".join(map(str, (self.seed, *what))))

    def at(self, moment: int, act: Act) -> None:
        self._count += 1
        heapq.heappush(self._moments, (max(moment, self.now), self._count, act))

    def after(self, delay: int, act: Act) -> None:
        self.at(self.now + delay, act)

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> None:
        """Run until that moment, or until `done`."""
        moments, pop = self._moments, heapq.heappop
        while moments and moments[0][0] <= until:
            self.now, _, act = pop(moments)
            act()
            if done():
                return
        self.now = max(self.now, until)

    def end(self) -> None:
        self._moments.clear()


class Handle:
    """A planned call, as asyncio has it; and its moment, if it has one."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Any,
        when: float = math.nan,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = nothing, ()  # the objects that it would have kept alive are free

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


def nothing() -> None:
    """The callback of a cancelled call."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process, which does its turns when the world comes to them."""

    def __init__(self, world: World, name: str, connect: Callable[..., Any]) -> None:
        self.world = world
        self.name = name
        self.pid = world.another_pid()
        self.alive = True
        self.stopped = False
        self._connect = connect
        self.chance = world.chance(name, "loop")
        self._began = self.chance.randrange(
            10**5
        )  # seconds that its machine was up: clocks of processes are not to be compared
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._turn_at: int | None = None  # when it is its turn
        self._free_at = 0  # when the turn before is over

    # Faults of a process --------------------------------------------------------------------------

    def crash(self) -> None:
        """Nothing more happens here, and no other process learns of it."""
        self.alive = False

    def forget(self) -> None:
        """Drop all planned calls of this loop, and the callers that wait for them."""
        self._ready.clear()
        self._timers.clear()

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        self._plan()

    def do(self, act: Callable[..., object], *args: Any) -> None:
        """From outside: bytes from the network, or an action of the fleet."""
        if self.alive:
            self.call_soon(act, *args)

    # Turns ----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan a turn if there is something to do."""
        if self._ready:
            self._turn_by(max(self.world.now, self._free_at))
        elif self._timers:
            self._turn_by(max(self._moment_of(self._timers[0][0]), self._free_at))

    def _turn_by(self, moment: int) -> None:
        if self._turn_at is None or moment < self._turn_at:
            self._turn_at = moment
            self.world.at(moment, lambda: self._turn(moment))

    def _turn(self, planned: int) -> None:
        if planned != self._turn_at:
            return
        self._turn_at = None
        if self.alive and not self.stopped:
            self._collect_due()
            self._run_ready()
            self._free_at = self.world.now + self.chance.randrange(5, 60)
            self._plan()

    def _collect_due(self) -> None:
        now, timers = self.time(), self._timers
        while timers and (timers[0][0] <= now or timers[0][2].is_cancelled):
            handle = heapq.heappop(timers)[2]
            if not handle.is_cancelled:
                self._ready.append(handle)

    def _run_ready(self) -> None:
        """Run the calls that were ready when the turn began, as any loop does it."""
        former, self.world.here = self.world.here, self
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (asyncio.CancelledError, Exception) as error:
                    self.call_exception_handler(
                        {"message": f"{handle.callback} failed", "exception": error}
                    )
                if not self.alive:
                    return
        finally:
            events._set_running_loop(None)
            self.world.here = former

    def time(self) -> float:
        return self._began + self.world.now / SECOND

    def _moment_of(self, when: float) -> int:
        """The first whole microsecond that is not before it: a timer never finds itself too
        early.
        """
        moment = math.ceil((when - self._began) * SECOND - 1e-2)
        while self._began + moment / SECOND < when:
            moment += 1
        return moment

    # The methods that asyncio needs ---------------------------------------------------------------

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        if self.world.here is not self:
            self._plan()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:  # type: ignore[override]
        if not self.alive:
            raise RuntimeError("the loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context, when)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        if self.world.here is not self:
            self._plan()
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        protocol = protocol_factory()
        return await self._connect(self, protocol, int(port or 6379)), protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self.world.complaints.append(
                f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
            )

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return not self.alive

    def is_running(self) -> bool:
        return self.world.here is self


def start(loop: ProcessLoop, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """A task of a process, begun from outside."""
    return loop.create_task(work, name=name)
