"""The fallback of a limiter while its store cannot be asked: let calls pass, or limit them to this
process's share of the limits.

Here every acquire chooses between the store and the fallback. Each change is logged here. This
module limits nothing: a share is a queue in a MemoryStore, and each remote store has one such
MemoryStore.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from headgate.errors import Reason, StoreError
from headgate.gate.gate import Grant
from headgate.gate.split import share_of
from headgate.keys import encoded, title
from headgate.logs import log
from headgate.permit import Permit, Refusal
from headgate.stores.context_stack import Inside
from headgate.stores.memory.fast_path import not_at_once
from headgate.stores.memory.store import MemoryStore
from headgate.validation import choice, positive_int, show

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units
    from headgate.interfaces import RemoteQueue, RemoteStore, Store
    from headgate.request import Request
    from headgate.stores.status import Status
    from headgate.waiting import OnWait, Waiting

T = TypeVar("T", Permit, Permit | Refusal)
MODES = ("raise", "open", "local")
UNFENCED = (
    0  # below every fence of a store: a resource that checks fences refuses a caller without one
)
# A store that answers counts as back after so many seconds without a failure: a flapping server
# fills no log.
CALM = 1.0


class Asked(Protocol):
    """The object that answers an acquire: a store's queue, or its replacement."""

    async def acquire(self, request: Request) -> Permit: ...
    def acquire_sync(self, request: Request) -> Permit: ...
    async def atake(self, request: Request) -> Permit | Refusal: ...
    def take(self, request: Request) -> Permit | Refusal: ...
    async def astatus(self) -> Status: ...


class FallbackQueue:
    """The queue of one name in a store, and the way past it."""

    def __init__(self, queue: RemoteQueue, store: RemoteStore, way: Way, absence: Absence) -> None:
        self.name = queue.name
        self.enter = self.enter_task = not_at_once
        self._queue = queue
        self._store = store
        self._way = way
        self._absence = absence
        self._inside = Inside()
        self.leave = self._inside.leave

    @property
    def declared(self) -> Declaration:
        return self._queue.declared

    def follow(self, declared: Declaration) -> None:
        self._queue.follow(declared)

    def foresee(self, declared: Declaration) -> Declaration:
        return self._queue.foresee(declared)

    def accept(self, declared: Declaration, known: bool) -> None:
        if declared.program:
            self._queue.accept(declared, known)

    async def learn(self) -> Declaration:
        """The limits in the store.

        While it is unavailable: none, if calls pass without limits; otherwise StoreError.
        """
        try:
            return await self._queue.learn()
        except StoreError as error:
            self._absence.begins(error.with_traceback(None), self._queue.key)
            self._way.check_known(self.name, self.declared, error)
            return self.declared

    def learn_sync(self) -> Declaration:
        return self._queue.blocking(self.learn)

    def once_known(self, said: str, act: Callable[[], None]) -> None:
        self._queue.once_known(said, act)

    def update(self, declared: Declaration, former: Declaration | None = None) -> None:
        """Update the store and the share.

        Raises ValueError and changes nothing if the store cannot keep the limits, or if they cannot
        be divided.
        """
        self._follow(declared)
        self._queue.update(declared, former)

    async def aupdate(self, declared: Declaration, former: Declaration | None = None) -> None:
        self._follow(declared)
        await self._queue.aupdate(declared, former)

    def pause(self, time: int) -> None:
        self._way.pause(self.name, self.declared, time)
        self._queue.pause(time)

    async def apause(self, time: int) -> None:
        self._way.pause(self.name, self.declared, time)
        await self._queue.apause(time)

    def flush(self) -> None:
        self._queue.flush()

    async def aflush(self) -> None:
        await self._queue.aflush()

    def resume(self) -> None:
        self._way.resume(self.name, self.declared)
        self._queue.resume()

    async def aresume(self) -> None:
        self._way.resume(self.name, self.declared)
        await self._queue.aresume()

    def reset(self) -> None:
        self._way.reset(self.name, self.declared)
        self._queue.reset()

    async def areset(self) -> None:
        self._way.reset(self.name, self.declared)
        await self._queue.areset()

    def drain(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        """The remaining budget of all processes says nothing about a share."""
        self._queue.drain(unit, left, limit, since)

    def _follow(self, declared: Declaration) -> None:
        self._queue.check(declared)
        self._way.follow(self.name, self.declared, declared)

    async def enter_waiting(self, request: Request) -> None:
        self._inside.entered(await self.acquire(request))

    def enter_sync(self, request: Request) -> None:
        self._inside.entered(self.acquire_sync(request))

    async def acquire(self, request: Request) -> Permit:
        return await self._either(request, lambda queue, request: queue.acquire(request))

    async def atake(self, request: Request) -> Permit | Refusal:
        return await self._either(request, lambda queue, request: queue.atake(request))

    async def _either(self, request: Request, ask: Callable[[Asked, Request], Awaitable[T]]) -> T:
        """Ask the store, and if it fails, ask the other way at once.

        So the callers that waited at the store stay in order.
        """
        start, lost = monotonic(), None
        if request.on_wait is not None:
            request = telling_once(request, request.on_wait)
        if not self._away():
            try:
                answer = await ask(self._queue, request)
            except StoreError as error:
                lost = error.with_traceback(None)
            else:
                self._absence.ends(self._store.away)
                return answer
        queue = self._without(request, lost)
        return unfenced(await ask(queue, rest_of(request, start) if lost else request), start)

    def acquire_sync(self, request: Request) -> Permit:
        start = monotonic()
        try:
            self._queue.check_thread()
        except StoreError as error:
            return self._without_waiting(request, error)
        if self._away():
            return unfenced(self._without(request, None).acquire_sync(request), start)
        try:
            permit = self._queue.acquire_at_once(request)
        except StoreError as error:
            queue = self._without(request, error.with_traceback(None))
            return unfenced(queue.acquire_sync(rest_of(request, start)), start)
        if permit is None:
            return self._queue.acquire_by_portal(request, self.acquire)
        self._absence.ends(self._store.away)
        return permit

    def take(self, request: Request) -> Permit | Refusal:
        try:
            self._queue.check_thread()
        except StoreError as error:
            return unfenced(
                self._way.queue(self.name, self.declared, request.units, error).take(request),
                monotonic(),
            )
        if self._away():
            return unfenced(self._without(request, None).take(request), monotonic())
        return self._queue.blocking(lambda: self.atake(request))

    def _without_waiting(self, request: Request, error: StoreError) -> Permit:
        """In headgate's own thread, where nothing must wait. That says nothing of the store."""
        permit = self._way.queue(self.name, self.declared, request.units, error).take(request)
        if isinstance(permit, Refusal):
            raise error
        return unfenced(permit, monotonic())

    def _without(self, request: Request, lost: StoreError | None) -> Asked:
        self._absence.begins(lost, self._queue.key)
        return self._way.queue(self.name, self.declared, request.units, self._absence.cause)

    def _away(self) -> bool:
        """Whether the store cannot be asked.

        True also without known limits: then `learn` has just failed.
        """
        return self._store.away(self._queue.key) or not self.declared.program

    async def astatus(self, own: Declaration | None = None) -> Status:
        """The status of the limits that hold at present."""
        lost = self._absence.cause
        if not self._store.away(self._queue.key):
            try:
                return await self._queue.astatus(own)
            except StoreError as error:
                lost = error.with_traceback(None)
        return await self._way.queue(self.name, own or self.declared, {}, lost).astatus()

    def status(self, own: Declaration | None = None) -> Status:
        return self._queue.blocking(partial(self.astatus, own))

    def describe(self) -> str:
        without = self._absence.now or self._away()
        return (
            f"{self._queue.describe()}{f', at present without it: {self._way}' if without else ''}"
        )


class FallbackStore:
    """The queues of one limiter and of its keys, each with its way past the store."""

    def __init__(self, store: RemoteStore, way: Way, name: str) -> None:
        self._store = store
        self._way = way
        self._absence = absence_of(store, name, way)

    def queue(self, name: str, declared: Declaration) -> FallbackQueue:
        return FallbackQueue(
            self._store.queue(name, declared), self._store, self._way, self._absence
        )


class Absence:
    """Whether a limiter works without its store, and why; it logs one line when that begins, and
    one when it is over.
    """

    def __init__(self, limiter: str, store: str, way: str) -> None:
        self.now = False
        self.cause: StoreError | None = None
        self._key = ""  # of which the store could not be asked
        self._words = limiter, store, way
        self._last = 0.0
        self._told = threading.Lock()  # locked between the two messages: never waited for

    def begins(self, cause: StoreError | None, key: str) -> None:
        self.now, self._last, self.cause, self._key = True, monotonic(), cause or self.cause, key
        if self._told.acquire(blocking=False):
            limiter, store, way = self._words
            log(
                logging.WARNING,
                "%s goes without its store, %s: %s. %s",
                limiter,
                store,
                way,
                self.cause or "It was found away.",
            )

    def ends(self, away: Callable[[str], bool]) -> None:
        """The store has answered.

        With several servers, the failed key may still be away although another key was answered.
        Then no message is logged.
        """
        if self.now:
            self.now, self.cause = False, None
        if self._told.locked() and monotonic() - self._last >= CALM and not away(self._key):
            with suppress(RuntimeError):  # another thread was faster
                self._told.release()
                limiter, store, _ = self._words
                log(logging.WARNING, "%s is back at its store, %s.", limiter, store)


# All limiters of one name in one store with the same fallback share one log line: some programs
# make a limiter for each request.
_absences: WeakKeyDictionary[RemoteStore, dict[tuple[str, str], Absence]] = WeakKeyDictionary()
MOST = 1024  # of them that are remembered in each store


def absence_of(store: RemoteStore, name: str, way: Way) -> Absence:
    known = _absences.setdefault(store, {})
    found = known.get((name, f"{way}"))
    if found is None:
        if len(known) >= MOST:
            known.clear()
        found = known.setdefault(
            (name, f"{way}"), Absence(f"Limiter {name!r}", f"{store}", f"{way}")
        )
    return found


# The ways without a store -------------------------------------------------------------------------


class Way(Protocol):
    """The substitute for a store. `str()` describes it in the log."""

    def check(self, name: str, declared: Declaration) -> None: ...
    def check_known(self, name: str, declared: Declaration, cause: StoreError) -> None: ...
    def follow(self, name: str, former: Declaration, declared: Declaration) -> None: ...
    def pause(self, name: str, declared: Declaration, time: int) -> None: ...
    def resume(self, name: str, declared: Declaration) -> None: ...
    def reset(self, name: str, declared: Declaration) -> None: ...
    def queue(
        self, name: str, declared: Declaration, units: Units, cause: StoreError | None
    ) -> Asked: ...


class Open:
    """Nothing is limited."""

    def check(self, name: str, declared: Declaration) -> None:
        """Any limits are accepted."""

    def check_known(self, name: str, declared: Declaration, cause: StoreError) -> None:
        """Any limits are accepted, known or not."""

    def follow(self, name: str, former: Declaration, declared: Declaration) -> None:
        """Any former limits are accepted."""

    def pause(self, name: str, declared: Declaration, time: int) -> None:
        """No caller waits here."""

    def resume(self, name: str, declared: Declaration) -> None:
        """No pause delays a caller here."""

    def reset(self, name: str, declared: Declaration) -> None:
        """Nothing is counted."""

    def queue(
        self, name: str, declared: Declaration, units: Units, cause: StoreError | None
    ) -> OpenQueue:
        return OpenQueue(name, declared, cause)

    def __str__(self) -> str:
        return "calls pass without limits (on_store_error='open')"


class OpenQueue:
    """Passes every caller at once, with permits that hold nothing, so none has to come back."""

    def __init__(self, name: str, declared: Declaration, cause: StoreError | None) -> None:
        self.name = name
        self.declared = declared
        self._cause = cause

    def acquire_sync(self, request: Request) -> Permit:
        return Permit(self, request.units, Grant(0, UNFENCED), 0.0, None, None)

    take = acquire_sync

    async def acquire(self, request: Request) -> Permit:
        return self.acquire_sync(request)

    atake = acquire

    async def astatus(self) -> Status:
        raise StoreError(
            f"The store of {title(self.name)} cannot be asked, and what passes without it is not "
            "counted: there is no status; ask again when the store is back.",
            reason_of(self._cause),
        ) from self._cause

    def release(self, permit: Permit) -> None:
        """Nothing is held."""

    abandon = release

    async def arelease(self, permit: Permit) -> bool:
        return False

    def settle(self, permit: Permit, extras: Units) -> None:
        """Nothing was charged."""

    def drain(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        """Nothing is counted."""


class Local:
    """This process holds itself to its share of the limits."""

    def __init__(self, store: MemoryStore, processes: int) -> None:
        self._store = store
        self._processes = processes

    def check(self, name: str, declared: Declaration) -> None:
        self._share(name, declared)

    def check_known(self, name: str, declared: Declaration, cause: StoreError) -> None:
        if not declared.program:
            raise StoreError(
                f"The limits of {title(name)} are in its store, which cannot be asked, so there is "
                "no share of them yet (on_store_error='local'). Ask again when the store is back, "
                "or declare the limits in this process."
            ) from cause

    def follow(self, name: str, former: Declaration, declared: Declaration) -> None:
        """Update the share as well.

        A declaration would look as if two parts of this program disagreed.
        """
        share = known = self._share(name, declared)
        with suppress(ValueError):  # other processes have declared limits that cannot be divided
            known = self._share(name, former)
        self._store.open_queue(name, known).update(share)

    def pause(self, name: str, declared: Declaration, time: int) -> None:
        # These limits of another process cannot be divided, so this process has no share, and no
        # caller passes anyway.
        with suppress(ValueError):
            self._store.open_queue(name, self._share(name, declared)).pause(time)

    def resume(self, name: str, declared: Declaration) -> None:
        with suppress(ValueError):  # no share: see `pause`
            self._store.open_queue(name, self._share(name, declared)).resume()

    def reset(self, name: str, declared: Declaration) -> None:
        with suppress(ValueError):  # no share: see `pause`
            self._store.open_queue(name, self._share(name, declared)).reset()

    def queue(
        self, name: str, declared: Declaration, units: Units, cause: StoreError | None
    ) -> Asked:
        """The share of the limits that the store's queue knows now, which may come from another
        process.
        """
        try:
            share = self._share(name, declared)
        except ValueError as indivisible:
            raise StoreError(
                f"{indivisible} Its store cannot be asked at present.", reason_of(cause)
            ) from cause
        for unit, number in units.items():
            if number > share.capacity.get(unit, number):
                raise StoreError(
                    f"An acquire of {title(name)} asks for {number} {unit}. Its store cannot be "
                    f"asked, and without it {self} and may take {share.capacity[unit]} at most; "
                    "ask for less, or when the store is back.",
                    reason_of(cause),
                ) from cause
        queue = self._store.open_queue(name, share)
        # The share may still have our older update, which another process has replaced in the
        # store.
        if queue.declared.program != share.program:
            queue.update(share)
        return queue

    def _share(self, name: str, declared: Declaration) -> Declaration:
        try:
            return share_of(declared.program, self._processes)
        except ValueError as indivisible:
            raise ValueError(
                f"Limiter({unquote(name)!r}, processes={self._processes}): {indivisible}; raise "
                "it, state fewer processes, or choose another on_store_error."
            ) from None

    def __str__(self) -> str:
        return (
            f"one of {self._processes} processes holds itself to its share of the limits "
            "(on_store_error='local')"
        )


# All limiters of one name in one store share one state, here too.
_shares: WeakKeyDictionary[RemoteStore, MemoryStore] = WeakKeyDictionary()


def with_fallback(
    store: Store, name: str, declared: Declaration, on_store_error: str, processes: int | None
) -> Store:
    """`store`, and the fallback of the limiter `name` while the store cannot be asked. A memory
    store always can.

    Only the limits as the user wrote them are refused here. Limits that other processes declare for
    the name later are no mistake of this program.
    """
    check_fallback(on_store_error, processes)
    if on_store_error == "raise" or isinstance(store, MemoryStore):
        return store
    remote = cast("RemoteStore", store)
    # `check_fallback` has made sure that only "local" has `processes`.
    way = (
        Open() if processes is None else Local(_shares.setdefault(remote, MemoryStore()), processes)
    )
    if declared.program:
        way.check(encoded(name), declared)
    return FallbackStore(remote, way, name)


def reason_of(cause: StoreError | None) -> Reason:
    """Of an error that comes from `cause`, why the store could not be asked; "lost" where that is
    not known.
    """
    return "lost" if cause is None else cause.reason


def check_fallback(mode: object, processes: object) -> None:
    mode = choice("Limiter", "on_store_error", mode, MODES)
    if mode == "local" and processes is None:
        raise TypeError(
            "Limiter(on_store_error='local') divides the limits by the number of processes, and "
            "none was given; write it, such as processes=4."
        )
    if mode != "local" and processes is not None:
        raise TypeError(
            f"Limiter(processes={show(processes)}): only on_store_error='local' divides limits "
            "among processes; write that too, or leave processes out."
        )
    if processes is not None:
        positive_int("Limiter", "processes", processes)


def rest_of(request: Request, start: float) -> Request:
    """The same request with the rest of its `max_sleep`."""
    if request.max_sleep is None:
        return request
    rest = copy(request)
    rest.max_sleep = max(0, request.max_sleep - int((monotonic() - start) * 1_000_000))
    return rest


def telling_once(request: Request, on_wait: OnWait) -> Request:
    """The same, whose `on_wait` is called for the first queue of two."""
    told: list[Waiting] = []

    def tell(waiting: Waiting) -> None:
        if not told:
            told.append(waiting)
            on_wait(waiting)

    once = copy(request)
    once.on_wait = tell
    return once


def unfenced(answer: T, start: float) -> T:
    """A grant without the store has no fence of the store; the caller has waited since `start`."""
    if isinstance(answer, Permit):
        answer.fence, answer.waited = UNFENCED, monotonic() - start
    return answer
