"""The queue of one name on Redis, as limiters and permits see it: the shells' calls, brought to the lane of the caller's loop.

Here live the two ways in, for tasks and for threads, and the ways back: a permit goes home to the loop that renews it, whichever
task or thread gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headgate.errors import MaxSleepExceededError
from headgate.gate.rules import Declaration, parsed
from headgate.permit import Permit, Refusal
from headgate.request import Request, cost_text
from headgate.stores.doors import shut
from headgate.stores.inside import Inside
from headgate.stores.redis.lane import Lane
from headgate.stores.redis.portal import blocking, portal, portal_loop
from headgate.stores.status import Status, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headgate.gate.gate import Grant, Units
    from headgate.stores.redis.calls import Ticket
    from headgate.stores.redis.shortcut import Passed, Shortcut
    from headgate.stores.redis.store import RedisStore


T = TypeVar("T")
LOGS = 4  # keys for the logs of windows, sent when a limit is a window


class RedisLine:
    """The queue of one name on one server."""

    def __init__(self, store: RedisStore, name: str, declared: Declaration) -> None:
        self.name = name
        self.key = f"headgate:{{{name}}}"
        self.declared = declared
        self.declares = True  # until a call of ours has carried the declaration there
        self.enter = shut
        self._store = store
        self._lock = threading.Lock()
        self._inside = Inside()
        self.leave = self._inside.leave

    def follow(self, declared: Declaration) -> None:
        if declared.program != self.declared.program:
            self.declared, self.declares = declared, True

    def keys(self, declared: Declaration) -> tuple[str, ...]:
        """The keys that the script works on: all share one hash tag."""
        return keys_of(self.key, "window " in declared.program)

    # Ways in -------------------------------------------------------------------------------------------------------------

    async def enter_later(self, request: Request) -> None:
        lane = self._store.lane(self)
        grant, ticket = await lane.acquire(request)
        if ticket.believed is None:
            self._inside.passed()
        else:
            self._inside.entered(self._permit(lane, request, grant, ticket))

    def enter_sync(self, request: Request) -> None:
        found = self._store.shortcut().acquire(self, request, self._unsure)
        permit = blocking(self.acquire(request)) if found is None else self._found(request, found, 0.0)
        if permit.held:
            self._inside.entered(permit)
        else:
            self._inside.passed()

    async def acquire(self, request: Request) -> Permit:
        lane = self._store.lane(self)
        return self._permit(lane, request, *await lane.acquire(request))

    def _permit(self, lane: Lane, request: Request, grant: Grant, ticket: Ticket) -> Permit:
        permit = Permit(self, request.units, grant, ticket.waited, ticket.caller, ticket.believed, lane)
        if permit.held:
            lane.hold(permit, ticket.lease)
        return permit

    def acquire_sync(self, request: Request) -> Permit:
        permit = self.quickly(request)
        return blocking(self.acquire(request)) if permit is None else permit

    def quickly(self, request: Request) -> Permit | None:
        """By this thread itself, if it can pass this instant."""
        start = monotonic()
        found = self._store.shortcut().acquire(self, request, self._unsure)
        return None if found is None else self._found(request, found, monotonic() - start)

    def blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` for a thread without a loop, done where its other calls are."""
        return blocking(work)

    def _found(self, request: Request, found: Passed, waited: float) -> Permit:
        permit = Permit(self, request.units, found.grant, waited, found.caller, found.believed, self._store.shortcut())
        if permit.held:
            self._by_portal(lambda lane: lane.hold(permit, self.declared.lease))
        return permit

    def _unsure(self, caller: str) -> None:
        """Take back what `caller` may have been granted."""
        session, number, text = caller.split(":")
        self._by_portal(lambda lane: lane.post(f"cancel {session} {number} 0 {text}"))

    async def atake(self, request: Request) -> Permit | Refusal:
        try:
            return await self.acquire(Request(request.units, 0, None))
        except MaxSleepExceededError as refused:
            return Refusal(refused.retry_after)

    def take(self, request: Request) -> Permit | Refusal:
        return blocking(self.atake(request))

    # Ways back -----------------------------------------------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        if self._claimed(permit):
            self._home(permit, lambda lane: lane.post(f"release {permit.key}"))

    async def arelease(self, permit: Permit) -> bool:
        if not self._claimed(permit):
            return False
        lane = permit.home
        if not isinstance(lane, Lane) or lane.link.loop is not asyncio.get_running_loop():
            lane = self._store.lane(self)
        return (await lane.ask(f"release {permit.key}"))[1] == "1"

    def abandon(self, permit: Permit) -> None:
        """Release from a finalizer, which may run in the middle of anything, so later; where no loop is left, the lease ends."""
        home = permit.home
        loop = home.link.loop if isinstance(home, Lane) else portal_loop()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.release, permit)

    def settle(self, permit: Permit, extras: Units) -> None:
        if extras:
            self._home(permit, lambda lane: lane.post(f"settle {permit.t} {cost_text(extras)}"))

    def _claimed(self, permit: Permit) -> bool:
        """Whether it is ours to give back: once, and not by a child of a fork."""
        with self._lock:
            held, permit.held = permit.held, False
        home = permit.home
        return held and (home.link if isinstance(home, Lane) else cast("Shortcut", home)).process == os.getpid()

    def _home(self, permit: Permit, errand: Callable[[Lane], None]) -> None:
        """Do `errand` in the loop that the permit came from, or by the portal when that loop is gone, or the parent's."""
        lane = permit.home
        if not isinstance(lane, Lane) or lane.link.closed or lane.link.process != os.getpid():
            self._by_portal(errand)
        elif lane.link.thread == threading.get_ident():
            errand(lane)
        else:
            try:
                lane.link.loop.call_soon_threadsafe(errand, lane)
            except RuntimeError:  # it was closed this moment
                self._by_portal(errand)

    def _by_portal(self, errand: Callable[[Lane], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the process ends: its leases will
            portal().loop.call_soon_threadsafe(lambda: errand(self._store.lane(self)))

    # Looking -------------------------------------------------------------------------------------------------------------

    async def astatus(self) -> Status:
        program, *numbers = await self._store.lane(self).ask("status -")
        waiting, delay, *left = map(int, numbers)
        return status_of(self.name, map(parsed, program.split(";")), left, waiting, delay)

    def status(self) -> Status:
        return blocking(self.astatus())

    def describe(self) -> str:
        """What can be said without asking the server."""
        return f"{self.declared.program} on {self._store}"


@lru_cache(maxsize=1024)
def keys_of(key: str, logs: bool) -> tuple[str, ...]:
    parts = ("queue", "holders", "sessions", *(f"log{number}" for number in range(1, LOGS + 1) if logs))
    return (key, *(f"{key}:{part}" for part in parts))
