"""The fallback of a limiter while its store cannot be asked: let calls pass, or limit them to this
process's share of the limits.
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
from weakref import WeakKeyDictionary

from headgate.changes import Change, Drain, Update
from headgate.counts import counts_of, note_refusal
from headgate.errors import Reason, StoreError
from headgate.gate.gate import Grant
from headgate.gate.split import share_of
from headgate.hooks import emit, has_hooks
from headgate.keys import encoded, title, unquoted
from headgate.log_writer import log
from headgate.permit import Permit, Refusal
from headgate.stores.context_stack import ContextStack
from headgate.stores.memory.store import MemoryStore
from headgate.validation import choice, positive_int, show
from headgate.wrapping import OuterQueue

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units
    from headgate.interfaces import Lists, RemoteQueue, RemoteStore, Store, Texts
    from headgate.request import Request
    from headgate.stores.status import Status
    from headgate.waiting import OnWait, Waiting

T = TypeVar("T", Permit, Permit | Refusal)
MODES = ("raise", "open", "local")
UNFENCED = 0  # below every fence of a store, so a resource that checks fences refuses it
# A store counts as back after so many seconds without a failure: a flapping server fills no log.
CALM = 1.0


class Askable(Protocol):
    """A store's queue, or its replacement."""

    async def acquire(self, request: Request) -> Permit: ...
    def acquire_sync(self, request: Request) -> Permit: ...
    async def atake(self, request: Request) -> Permit | Refusal: ...
    def take(self, request: Request) -> Permit | Refusal: ...
    async def astatus(self) -> Status: ...


class FallbackQueue(OuterQueue):
    _queue: RemoteQueue

    def __init__(
        self, queue: RemoteQueue, store: RemoteStore, mode: Mode, absence: Absence
    ) -> None:
        super().__init__(queue)
        self._store = store
        self._mode = mode
        self._absence = absence
        self._inside = ContextStack()
        self.leave = self._inside.leave

    def accept(self, declared: Declaration, known: bool) -> None:
        if declared.program:
            self._queue.accept(declared, known)

    async def learn(self) -> Declaration:
        """While the store is away: the known limits. StoreError if none are known but needed."""
        try:
            return await self._queue.learn()
        except StoreError as error:
            self._absence.begins(copy(error), self._queue.key)
            self._mode.check_known(self.name, self.declared, error)
            return self.declared

    def learn_sync(self) -> Declaration:
        return self._queue.threads.blocking(self.learn)

    def change(self, change: Change) -> None:
        self._change_share(change)
        self._queue.change(change)

    async def achange(self, change: Change) -> None:
        self._change_share(change)
        await self._queue.achange(change)

    def _change_share(self, change: Change) -> None:
        """Raises ValueError for an update to limits that cannot be kept or divided."""
        if isinstance(change, Update):
            self._mode.follow(self.name, self.declared, change.declared)
        # A drain states what is left for all processes. That says nothing about this share.
        elif not isinstance(change, Drain):
            self._mode.change(self.name, self.declared, change)

    async def enter_waiting(self, request: Request) -> None:
        self._inside.note_entry(await self.acquire(request))

    def enter_sync(self, request: Request) -> None:
        self._inside.note_entry(self.acquire_sync(request))

    async def acquire(self, request: Request) -> Permit:
        return await self._either(request, lambda queue, request: queue.acquire(request))

    async def atake(self, request: Request) -> Permit | Refusal:
        return await self._either(request, lambda queue, request: queue.atake(request))

    async def _either(self, request: Request, ask: Callable[[Askable, Request], Awaitable[T]]) -> T:
        """Ask the store. If it fails, ask its replacement at once: so callers stay in order."""
        start, failure = monotonic(), None
        if request.on_wait is not None:
            request = waiting_once(request, request.on_wait)
        if not self._away():
            try:
                answer = await ask(self._queue, request)
            except StoreError as error:
                failure = copy(error)
            else:
                self._absence.ends(self._store.away)
                return answer
        queue = self._begin_absence(request, failure)
        if failure is not None:
            request = rest_of(request, start)
        return unfenced(await ask(queue, request), start)

    def acquire_sync(self, request: Request) -> Permit:
        start = monotonic()
        try:
            self._queue.threads.check_thread()
        except StoreError as error:
            taken = self._take_without(request, error)
            if isinstance(taken, Refusal):
                raise error
            return taken
        if self._away():
            return unfenced(self._begin_absence(request, None).acquire_sync(request), start)
        try:
            permit = self._queue.threads.acquire_at_once(request)
        except StoreError as error:
            queue = self._begin_absence(request, copy(error))
            return unfenced(queue.acquire_sync(rest_of(request, start)), start)
        if permit is None:  # only the portal can decide
            return self._queue.threads.acquire_by_portal(request, self.acquire)
        self._absence.ends(self._store.away)
        return permit

    def take(self, request: Request) -> Permit | Refusal:
        try:
            self._queue.threads.check_thread()
        except StoreError as error:
            return self._take_without(request, error)
        if self._away():
            return unfenced(self._begin_absence(request, None).take(request), monotonic())
        return self._queue.threads.blocking(lambda: self.atake(request))

    def _take_without(self, request: Request, error: StoreError) -> Permit | Refusal:
        """Take without the store, in headgate's own thread, which must not wait for itself."""
        return unfenced(self._replacement(request, error).take(request), monotonic())

    def _begin_absence(self, request: Request, failure: StoreError | None) -> Askable:
        """Note that the store is away. Return the queue that replaces its own."""
        self._absence.begins(failure, self._queue.key)
        return self._replacement(request, self._absence.cause)

    def _replacement(self, request: Request, cause: StoreError | None) -> Askable:
        try:
            return self._mode.queue(self.name, self.declared, request.units, cause)
        except StoreError:
            note_refusal(counts_of(self.name), self.name, "store_error")
            raise

    def _away(self) -> bool:
        """Whether the store is away.

        Without known limits it is: each acquire of an attached limiter calls `learn` first, and
        that has just failed.
        """
        return self._store.away(self._queue.key) or not self.declared.program

    async def astatus(self, own: Declaration | None = None) -> Status:
        failure = self._absence.cause
        if not self._store.away(self._queue.key):
            try:
                return await self._queue.astatus(own)
            except StoreError as error:
                failure = copy(error)
        return await self._mode.queue(self.name, own or self.declared, {}, failure).astatus()

    def status(self, own: Declaration | None = None) -> Status:
        return self._queue.threads.blocking(partial(self.astatus, own))

    def describe(self) -> str:
        away = self._absence.now or self._store.away(self._queue.key)
        without = f", at present without it: {self._mode}" if away else ""
        return f"{self._queue.describe()}{without}"


class FallbackStore:
    def __init__(self, store: RemoteStore, mode: Mode, name: str) -> None:
        self._store = store
        self._mode = mode
        known, key = _absences.setdefault(store, {}), (name, f"{mode}")
        if key not in known and len(known) >= MOST:
            known.clear()
        self._absence = known.setdefault(key, Absence(f"Limiter {name!r}", f"{store}", f"{mode}"))

    def queue(self, name: str, declared: Declaration) -> FallbackQueue:
        return FallbackQueue(
            self._store.queue(name, declared), self._store, self._mode, self._absence
        )

    @property
    def lists(self) -> Lists:
        return self._store.lists

    @property
    def texts(self) -> Texts | None:
        return self._store.texts


class Absence:
    """Whether a limiter works without its store, and why. It logs the beginning and the end."""

    def __init__(self, limiter: str, store: str, mode: str) -> None:
        self.now = False
        # A copy, without the tracebacks of the error and its causes: these would keep the frames of
        # the callers alive.
        self.cause: StoreError | None = None
        self._key = ""  # the key for which the store failed last
        self._words = limiter, store, mode
        self._since = self._last = 0.0
        # Locked from the message that the store is away to the one that it is back.
        self._reported = threading.Lock()

    def begins(self, cause: StoreError | None, key: str) -> None:
        self.now, self._last, self.cause, self._key = True, monotonic(), cause or self.cause, key
        if self._reported.acquire(blocking=False):
            self._since = self._last
            why = self.cause or "It was found away."
            self._log("store_away", "%s goes without its store, %s: %s. %s", *self._words, why)
            if has_hooks():
                from headgate.events import StoreAway

                emit(StoreAway(self._words[1], f"{why}"))

    def ends(self, away: Callable[[str], bool]) -> None:
        """The store answers. Log that if it has not failed for CALM seconds, and the server of the
        failed key is not away.
        """
        if self.now:
            self.now, self.cause = False, None
        if self._reported.locked() and monotonic() - self._last >= CALM and not away(self._key):
            with suppress(RuntimeError):  # another thread was faster
                self._reported.release()
                self._log("store_back", "%s is back at its store, %s.", *self._words[:2])
                if has_hooks():
                    from headgate.events import StoreBack

                    emit(StoreBack(self._words[1], monotonic() - self._since))

    def _log(self, kind: str, message: str, *arguments: object) -> None:
        log(logging.WARNING, message, *arguments, kind=kind, name=self._words[0], every_time=True)


# Limiters of one name and fallback share log lines: some programs make one for each request.
_absences: WeakKeyDictionary[RemoteStore, dict[tuple[str, str], Absence]] = WeakKeyDictionary()
MOST = 1024  # absences that are remembered for each store


class Mode:
    """Replaces a store that is away. This one limits nothing. Log lines show its `str()`."""

    def check(self, name: str, declared: Declaration) -> None:
        """Raise ValueError for limits that it cannot keep."""

    def check_known(self, name: str, declared: Declaration, cause: StoreError) -> None:
        """Raise StoreError if it needs limits and has none."""

    def follow(self, name: str, former: Declaration, declared: Declaration) -> None:
        """Update the share."""

    def change(self, name: str, declared: Declaration, change: Change) -> None:
        """Pause, resume or reset the share."""

    def queue(
        self, name: str, declared: Declaration, units: Units, cause: StoreError | None
    ) -> Askable:
        return OpenQueue(name, declared, cause)

    def __str__(self) -> str:
        return "calls pass without limits (on_store_error='open')"


class OpenQueue:
    """Every caller passes at once, with a permit that holds nothing."""

    def __init__(self, name: str, declared: Declaration, cause: StoreError | None) -> None:
        self.name = name
        self.declared = declared
        self._cause = cause

    def acquire_sync(self, request: Request) -> Permit:
        counts_of(self.name).unlimited += 1
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

    def owns(self, permit: Permit) -> bool:
        return True  # there is nothing to give back

    def settle(self, permit: Permit, extras: Units) -> None:
        """Nothing was charged."""

    def change(self, change: Change) -> None:
        """Nothing is counted."""


class Local(Mode):
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
        # Not a declaration of the share: an earlier update would overrule it.
        share = former_share = self._share(name, declared)
        with suppress(ValueError):  # as in `change`
            former_share = self._share(name, former)
        self._store.open_queue(name, former_share).change(Update(share))

    def change(self, name: str, declared: Declaration, change: Change) -> None:
        # Another process may have declared limits that cannot be divided. Then there is no share,
        # and no caller passes anyway.
        with suppress(ValueError):
            self._store.open_queue(name, self._share(name, declared)).change(change)

    def queue(
        self, name: str, declared: Declaration, units: Units, cause: StoreError | None
    ) -> Askable:
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
        # It may still have an older update, which another process has replaced in the store.
        if queue.declared.program != share.program:
            queue.change(Update(share))
        return queue

    def _share(self, name: str, declared: Declaration) -> Declaration:
        try:
            return share_of(declared.program, self._processes)
        except ValueError as indivisible:
            raise ValueError(
                f"Limiter({unquoted(name)!r}, processes={self._processes}): {indivisible}; raise "
                "it, state fewer processes, or choose another on_store_error."
            ) from None

    def __str__(self) -> str:
        return (
            f"one of {self._processes} processes holds itself to its share of the limits "
            "(on_store_error='local')"
        )


# All limiters of one name in one store share one state, also while the store is away.
_shares: WeakKeyDictionary[RemoteStore, MemoryStore] = WeakKeyDictionary()
_modes: WeakKeyDictionary[RemoteStore, set[str]] = WeakKeyDictionary()


def modes_of(store: RemoteStore) -> tuple[str, ...]:
    """The `on_store_error` of all limiters that have used `store`. A classic's is "raise"."""
    return tuple(sorted(_modes.get(store, {"raise"})))


def with_fallback(
    store: Store, name: str, declared: Declaration, on_store_error: str, processes: int | None
) -> Store:
    """`store`, with the fallback of the limiter `name`. A memory store needs none.

    This refuses only limits that the user wrote. Those of other processes are not known yet.
    """
    check_fallback(on_store_error, processes)
    if isinstance(store, MemoryStore):
        return store
    remote = cast("RemoteStore", store)
    _modes.setdefault(remote, set()).add(on_store_error)
    if on_store_error == "raise":
        return store
    mode = Mode()
    if processes is not None:  # only "local" has them
        share = _shares.setdefault(remote, MemoryStore(is_share=True))
        mode = Local(share, processes)
    if declared.program:
        mode.check(encoded(name), declared)
    return FallbackStore(remote, mode, name)


def reason_of(cause: StoreError | None) -> Reason:
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
    """The same, with the part of its `max_sleep` that is left since `start`."""
    if request.max_sleep is None:
        return request
    rest = copy(request)
    rest.max_sleep = max(0, request.max_sleep - int((monotonic() - start) * 1_000_000))
    return rest


def waiting_once(request: Request, on_wait: OnWait) -> Request:
    """The same, with an `on_wait` that acts once: a store and its replacement may both call it."""
    first: list[Waiting] = []

    def call_once(waiting: Waiting) -> None:
        if not first:
            first.append(waiting)
            on_wait(waiting)

    once = copy(request)
    once.on_wait = call_once
    return once


def unfenced(answer: T, start: float) -> T:
    """The same, with the fence of a grant without the store, and the whole wait since `start`."""
    if isinstance(answer, Permit):
        answer.fence, answer.waited = UNFENCED, monotonic() - start
    return answer
