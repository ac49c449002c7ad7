"""The ways in for threads: the fast path, or the portal, a loop in a background thread."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headgate.counts import counts_of, note_grant
from headgate.gate.gate import ONE_EACH
from headgate.permit import Permit
from headgate.stores.loops import waits_for_ever, warn_of_blocking
from headgate.stores.redis.fast_path import FastIssuer
from headgate.stores.redis.routing import Sessions
from headgate.stores.redis.session.loop_session import SessionQueue
from headgate.stores.redis.transport.connection import SILENCE
from headgate.stores.redis.transport.failures import cannot
from headgate.stores.redis.transport.portal import BlockingCall, answer_of, blocking, check_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headgate.gate.compile import Declaration
    from headgate.request import Request
    from headgate.stores.redis.fast_path import FastPath
    from headgate.stores.redis.transport.topology import Topology
    from headgate.waiting import Waiting

    Acquiring = Callable[[Request], Coroutine[Any, Any, Permit]]

T = TypeVar("T")


class Queue(SessionQueue, Protocol):
    """The queue, as a thread sees it."""

    @property
    def declared(self) -> Declaration: ...
    @property
    def issuer(self) -> FastIssuer: ...
    @property
    def whole(self) -> Queue | None: ...
    @property
    def threads(self) -> Threads: ...


class FastPaths(Sessions, Protocol):
    """The store, as a thread sees it."""

    @property
    def topology(self) -> Topology: ...
    def fast_path(self) -> FastPath: ...


class Threads:
    """The acquires and other calls of threads for one queue."""

    def __init__(self, queue: Queue, store: FastPaths) -> None:
        self._queue = queue
        self._store = store
        # Until then, an acquire on the fast path could overtake a pause on its way to the server.
        self.no_fast_path_until = 0.0
        self._warned = False  # a log line has said that a thread blocks its event loop

    check_thread = staticmethod(check_thread)  # for FallbackQueue, which imports no Redis module

    def acquire_at_once(self, request: Request) -> Permit | None:
        """A permit over the fast path. None: go through the portal.

        Raises StoreError if `max_sleep` was spent on a silent server.
        """
        check_thread()
        start = monotonic()
        if start < self.no_fast_path_until:
            return None
        whole = self._queue.whole
        if whole is not None and start < whole.threads.no_fast_path_until:
            return None
        # If a pause of the whole limiter holds or may hold, the portal's session asks for it.
        if whole is not None and not self._queue.pause.passes(start):
            return None
        permit = self._store.fast_path().acquire(self._queue.issuer, request)
        if permit is not None:
            note_grant(counts_of(self._queue.name), self._queue.name, request, None)
            return permit
        spent = monotonic() - start
        if request.max_sleep is not None and spent >= max(SILENCE, request.max_sleep / 1_000_000):
            raise cannot(self._store.topology, TimeoutError())
        return None

    def blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work` in the portal. A permit that comes too late is released."""
        return blocking(work, self._queue.name, give_back)

    def acquire_by_portal(self, request: Request, acquire: Acquiring) -> Permit:
        """Acquire in the portal. The thread itself calls `on_wait`."""
        # `close()` in a signal handler looks for this local variable in the thread's frames.
        closing = request.closing  # noqa: F841
        loop, on_wait = asyncio._get_running_loop(), request.on_wait
        if loop is not None:  # This thread blocks its own event loop.
            self._check_held_here(loop, request)
            on_wait = self._warn_of_blocking if on_wait is None else on_wait
        if on_wait is None:
            return self.blocking(lambda: acquire(request))
        # The task in the portal calls `say`, which makes this thread call `on_wait`.
        call: BlockingCall[Permit] = BlockingCall(
            lambda: acquire(request.replaced(request.units, call.say)),
            self._queue.name,
            give_back,
            on_wait,
        )
        return answer_of(call)

    def _check_held_here(self, loop: asyncio.AbstractEventLoop, request: Request) -> None:
        """Raise RuntimeError if the caller would wait for permits that tasks of `loop` hold, while
        it blocks `loop`.
        """
        session = self._store.known_session(self._queue, loop)
        if session is None or request.max_sleep is not None:
            return
        for unit, capacity in self._queue.declared.capacity.items():
            cost = request.units.get(unit, ONE_EACH.get(unit, 0))
            if (
                unit not in self._queue.declared.rated
                and cost
                and session.machine.renewal.units_held(unit) + cost > capacity
            ):
                raise waits_for_ever(
                    self._queue.name, "the permits that its tasks hold go back only while it runs"
                )

    def _warn_of_blocking(self, waiting: Waiting) -> None:
        if not self._warned:
            self._warned = True
            warn_of_blocking(self._queue.name)


def give_back(answer: object) -> None:
    if isinstance(answer, Permit):
        answer.release()
