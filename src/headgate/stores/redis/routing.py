"""The sessions of one queue, and the way of an acquire or operation to one of them.

Each event loop has a session of its own. A permit goes back through the loop that renews it, no
matter which task or thread gives it back. The portal goes on for loops that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.errors import StoreError
from headgate.keys import title
from headgate.stores.context_stack import current_caller
from headgate.stores.redis.protocol.operations import Pause
from headgate.stores.redis.session.acquires import resolve
from headgate.stores.redis.session.loop_session import LoopSession, SessionQueue
from headgate.stores.redis.session.pause_watch import PauseWatch
from headgate.stores.redis.transport.portal import NoPortalError, portal, portal_loop
from headgate.stores.redis.transport.shutdown import report

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine, Hashable, Iterable

    from headgate.permit import Permit
    from headgate.request import Request
    from headgate.stores.redis.protocol.operations import Operation

ENDED = "this process has closed its connections."


class Sessions(Protocol):
    """The store, as the sessions of a queue see it."""

    def session(self, queue: SessionQueue) -> LoopSession: ...
    def known_session(self, queue: SessionQueue, loop: AbstractEventLoop) -> LoopSession | None: ...
    def end_closed(self) -> None: ...
    def queues(self) -> Iterable[SessionQueue]: ...


class Routing:
    """The sessions of one queue, by event loop."""

    def __init__(self, queue: SessionQueue, store: Sessions) -> None:
        self._queue = queue
        self._store = store
        self.last: LoopSession | None = None  # the session that was used last
        # One session for each event loop. Once keys of this limiter are used in that loop, also the
        # watch over the pause. Only this dict keeps idle sessions alive. Other threads change it,
        # so a `for` goes over a copy.
        self._sessions: dict[LoopSession, PauseWatch | None] = {}

    def session(self) -> LoopSession:
        """The session in the running loop: mostly the same as before."""
        session = self.last
        if (
            session is None
            or session.client.loop is not asyncio._get_running_loop()
            or session.client.ended
        ):
            session = self.last = self._store.session(self._queue)
            self._sessions.setdefault(session)
        self.leave_closed()
        return session

    def acquire(self, request: Request) -> Coroutine[Any, Any, Permit]:
        # Only a caller that enters may get None.
        return cast("Coroutine[Any, Any, Permit]", self.session().acquire(request))

    def current_caller(self) -> Hashable:
        """The current task or thread. The last client mostly knows it without a system call."""
        session = self.last
        return (session and session.client.task) or current_caller()

    def leave_closed(self) -> None:
        """Drop the sessions of closed loops: the portal takes them over with their clients.

        A single session needs no check: it is that of the caller, whose loop runs.
        """
        if len(self._sessions) < 2:
            return
        closed = [session for session in list(self._sessions) if session.client.loop.is_closed()]
        for session in closed:
            self._sessions.pop(session, None)
        if closed:
            self._store.end_closed()

    def add(self, session: LoopSession) -> None:
        """Go on with `session` in another loop, without its watch over the pause.

        The watch belongs to the former loop, with its timer and its question.
        """
        self._sessions[session] = None

    def sessions_of(self, loop: asyncio.AbstractEventLoop) -> list[LoopSession]:
        return [session for session in list(self._sessions) if session.client.loop is loop]

    def loops(self) -> set[asyncio.AbstractEventLoop]:
        """The loops with a session for this name, closed ones included."""
        return {session.client.loop for session in list(self._sessions)}

    def usage(self) -> tuple[int, int]:
        """How many permits the sessions hold, and how many of their callers wait."""
        sessions = [session.machine for session in list(self._sessions)]
        waiters = sum(len(each.traffic.not_granted()) for each in sessions)
        return sum(each.renewal.held for each in sessions), waiters

    def idle(self) -> bool:
        """Whether the process loses nothing when it forgets this queue."""
        return all(session.machine.idle for session in list(self._sessions))

    def forked(self) -> None:
        """In the child of a fork: forget the sessions, which are the parent's."""
        self.last = None
        self._sessions = {}

    # The pause of a whole limiter -----------------------------------------------------------------

    def watch(self) -> PauseWatch:
        """For a whole limiter: the watch over its pause in the running loop."""
        session = self.session()
        watch = self._sessions.get(session)
        if watch is None:
            watch = self._sessions[session] = PauseWatch(session)
        return watch

    def allows(self, session: LoopSession) -> bool:
        """For a whole limiter: whether the next call of `session`, that of a key, may leave.

        Otherwise the watch calls the session's `poll` soon. A call that only gives back need not
        wait.
        """
        traffic = session.traffic
        if not (traffic.acquires or traffic.waiting) or session.client.closed:
            return True
        now = monotonic()
        return now < self._queue.pause.ask_from or self.watch().allows(session, now)

    def note_pause(self, server_now: int, left: int, asked_at: float = 0.0) -> None:
        """News of this name's pause. The sessions of its keys learn of it in all loops.

        A pause of one key holds for no other queue.
        """
        queue = self._queue
        if queue.whole is None and queue.pause.note(server_now, left, monotonic(), asked_at):
            for other in self._store.queues():
                if other.whole is queue:
                    other.routing.note_whole_pause()

    def note_whole_pause(self) -> None:
        """The pause of the whole limiter has begun or ended. Each session learns of it."""
        for session in list(self._sessions):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                session.client.loop.call_soon_threadsafe(session.poll)

    # The way of an operation ----------------------------------------------------------------------

    def post(self, operation: Operation) -> None:
        """Send `operation` with the next call.

        A signal handler or a finalizer may call this in the middle of the session's own code.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            if self.by_portal(lambda session: self._run(session, operation)):
                return
            if operation.asker is not None:
                resolve(operation.asker, StoreError(f"{title(self._queue.name)}: {ENDED}"))
            else:
                report([(title(self._queue.name), ENDED, Counter([operation.verb]))])
        elif (session := self._store.known_session(self._queue, loop)) is None:
            loop.call_soon_threadsafe(lambda: self._run(self.session(), operation))
        else:
            append(session, operation)
            self._note_posted(operation)

    def _run(self, session: LoopSession, operation: Operation) -> None:
        session.run([operation])
        self._note_posted(operation)

    def _note_posted(self, operation: Operation) -> None:
        """After this process has paused the whole limiter, no caller of a key here may overtake."""
        if isinstance(operation, Pause) and self._queue.whole is None:
            self._queue.pause.distrust(monotonic())

    def send_home(self, permit: Permit, operation: Operation) -> None:
        """Send `operation` from the loop that renews the permit.

        The portal sends it if that loop is closed, or belongs to the parent of a fork.
        """
        session = permit.home
        if (
            not isinstance(session, LoopSession)
            or session.client.ended
            or session.client.process != os.getpid()
        ):
            self.by_portal(lambda of_portal: of_portal.run([operation]))
        elif (
            session.client.loop is portal_loop() and session.client.thread != threading.get_ident()
        ):
            # The portal's loop renews it, and another thread calls.
            portal().tell(lambda: self._run_at_home(session, operation))
        elif session.client.task is not None:
            session.run([operation])  # A task of that loop calls.
        else:
            # Another thread, a callback or a finalizer calls. If that loop never runs again, the
            # portal sends the operation.
            try:
                append(session, operation)
            except RuntimeError:  # the loop was closed just now
                self.by_portal(lambda _: session.rescue())

    def _run_at_home(self, session: LoopSession, operation: Operation) -> None:
        """In the portal: run `operation`, unless a fork came between `tell` and this call.

        In the child, the session is the parent's, and the parent runs the operation. The child must
        write nothing to the parent's connection.
        """
        if session.client.process == os.getpid():
            session.run([operation])

    def by_portal(self, operation: Callable[[LoopSession], None]) -> bool:
        """Run `operation` in the portal. False: the process ends, and so do its leases in time."""
        try:
            portal().tell(lambda: operation(self.session()))
        except NoPortalError:
            return False
        return True


def append(session: LoopSession, operation: Operation) -> None:
    """Add `operation` to the next call of `session`, and have that sent by its loop.

    A signal handler, a finalizer or another thread may call this in the middle of any method.
    """
    session.traffic.operations.append(operation)
    if session.client.ended:  # it may have ended without this operation, and its loop runs no more
        portal().tell(session.rescue)
    else:
        session.client.loop.call_soon_threadsafe(send_appended, session)


def send_appended(session: LoopSession) -> None:
    """Send what `append` has added.

    This runs in the loop that had the session then. Another loop may have it by now.
    """
    if session.client.here and not session.client.closed:
        session.poll()
    else:
        with contextlib.suppress(RuntimeError):  # the process ends, and so do its leases in time
            portal().tell(session.rescue)
