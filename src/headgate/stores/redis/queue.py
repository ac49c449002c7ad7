"""The queue of one name on Redis, as limiters and permits see it: the shells' calls, brought to the lane of the caller's loop.

Here live the two ways in, for tasks and for threads, and the ways back: a permit goes home to the loop that renews it, whichever
task or thread gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import unquote

from headgate.errors import HeadgateError, MaxSleepExceededError, StoreError
from headgate.gate.compile import Declaration, read_program
from headgate.gate.gate import ONE_EACH
from headgate.keys import title
from headgate.logs import log
from headgate.permit import Permit, Refusal
from headgate.request import Request, cost_text
from headgate.stores.context_stack import Inside, visitor
from headgate.stores.limit_history import in_words
from headgate.stores.loops import waits_for_ever, warn_of_blocking
from headgate.stores.memory.fast_path import shut
from headgate.stores.redis.limit_sync import LimitSync
from headgate.stores.redis.protocol.messages import (
    UNKNOWN,
    Operation,
    Statement,
    ignore_reply,
    told_by,
)
from headgate.stores.redis.session.delivery import move
from headgate.stores.redis.session.lost_leases import log_lost
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.transport.endpoint import SILENCE
from headgate.stores.redis.transport.failures import cannot
from headgate.stores.redis.transport.portal import (
    Call,
    NoPortalError,
    answer_of,
    blocking,
    check_thread,
    portal,
    portal_loop,
)
from headgate.stores.redis.transport.shutdown import report
from headgate.stores.refusals import unknown_limiter
from headgate.stores.status import Status, status_of, unused

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine, Hashable, Sequence

    from headgate.gate.gate import Grant, Units
    from headgate.stores.redis.fast_path import FastPath, Passed
    from headgate.stores.redis.protocol.messages import Answer, PendingAcquire
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.topology import Topology
    from headgate.waiting import Waiting

    Acquiring = Callable[[Request], Coroutine[Any, Any, Permit]]

T = TypeVar("T")
WORTH = (
    10.0  # seconds for which it is worth saying to a server that was away what holds at this moment
)
ENDED = "this process has closed its connections."
LOGS = 4  # windows that a log has room for


class Sessions(Protocol):
    """What a queue asks of its store."""

    @property
    def topology(self) -> Topology: ...
    def session(self, queue: RedisQueue) -> Session: ...
    def known_session(self, queue: RedisQueue, loop: AbstractEventLoop) -> Session | None: ...
    def client(self) -> Client: ...
    def end_closed(self) -> None: ...
    def fast_path(self) -> FastPath: ...
    async def flush(self, name: str) -> None: ...


class RedisQueue:
    """The queue of one name on one server."""

    def __init__(self, store: Sessions, name: str, declared: Declaration) -> None:
        self.name = name
        self.key = f"headgate:{{{name}}}"
        self.limits = LimitSync(name, declared)
        self._seen: tuple[Status, float] | None = None  # by the last reply to a look, and when
        self._no_fast_path = 0.0  # in a pause of ours, which another connection might overtake
        self._warned = False  # that a thread blocks its event loop
        self.enter = self.enter_task = shut
        self._store = store
        self._last: Session | None = None  # that was asked for here
        self._sessions: list[
            Session
        ] = []  # one for each loop, kept here alone while idle; other threads change the list: copy it
        self._inside = Inside()

    @property
    def declared(self) -> Declaration:
        return self.limits.declared

    def follow(self, declared: Declaration) -> None:
        """An acquire declares its limits."""
        self.limits.follow(declared)

    def foresee(self, declared: Declaration) -> Declaration:
        """The limits that would hold for this process if `declared` were declared now."""
        return self.limits.foresee(declared)

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if none are declared here.

        They are the store's, or (not `known`) those of the present caller.
        """
        self.limits.accept(declared, known)

    # What is taken from the store ----------------------------------------------------------------------------------------

    async def learn(self) -> Declaration:
        """The limits of the name. Raises UnknownLimiterError when no process has declared any."""
        if not self.limits.known:
            self._check_known(await self.session().ask("declared"))
        return self.limits.present

    def learn_sync(self) -> Declaration:
        return self.blocking(self.learn)

    def _check_known(self, answer: Sequence[Any]) -> None:
        if answer == UNKNOWN or not answer[1]:
            raise unknown_limiter(self.name)

    def once_known(self, said: str, act: Callable[[], None]) -> None:
        """Do `act`, which `said` names, when the limits are known, and never wait for that."""
        if self.limits.known:
            act()
            return

        def told(answer: Answer) -> None:
            try:
                if isinstance(answer, StoreError):
                    raise answer
                self._check_known(answer)
            except HeadgateError as unknown:
                log(
                    logging.WARNING,
                    "%s of %s has not happened: %s",
                    said,
                    title(self.name),
                    unknown,
                )
            else:
                act()

        self._post(Operation("declared", told))

    # What is said of the name --------------------------------------------------------------------------------------------

    def check(self, declared: Declaration) -> None:
        """ValueError for limits that Redis cannot keep."""
        check_windows(self.name, declared)

    def update(self, declared: Declaration, former: Declaration | None = None) -> None:
        self._post(Operation(self._updated(declared, former), ignore_reply))

    async def aupdate(self, declared: Declaration, former: Declaration | None = None) -> None:
        await self.session().ask(self._updated(declared, former))

    def pause(self, time: int) -> None:
        self._no_fast_path = max(self._no_fast_path, monotonic() + time / 1_000_000)
        self._post(Statement(f"pause {time}", ignore_reply, monotonic() + time / 1_000_000))

    async def apause(self, time: int) -> None:
        await self.session().ask(f"pause {time}")

    def resume(self) -> None:
        self._no_fast_path = 0.0
        self._post(Statement("resume", ignore_reply, monotonic() + WORTH))

    async def aresume(self) -> None:
        self._no_fast_path = 0.0
        await self.session().ask("resume")

    def reset(self) -> None:
        self._post(Statement("reset", ignore_reply, monotonic() + WORTH))

    async def areset(self) -> None:
        await self.session().ask("reset")

    def drain(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        self._post(
            Statement(f"drain {unit} {limit} {left} {since}", ignore_reply, monotonic() + WORTH)
        )

    def flush(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"flush() of {title(self.name)} would block the event loop that has to send: write `await limiter.aflush()`."
            )
        blocking(self.aflush, self.name)

    async def aflush(self) -> None:
        await self._store.flush(self.name)

    def _post(self, operation: Operation) -> None:
        """Send `errand` with the next call. A signal handler or a finalizer may ask in the middle of the lane's own code."""
        loop = asyncio._get_running_loop()
        if loop is None:
            if not self._by_portal(lambda session: session.run([operation])):
                report([(title(self.name), ENDED, Counter(operation.words.split(" ")[:1]))])
        elif (session := self._store.known_session(self, loop)) is None:
            loop.call_soon_threadsafe(lambda: self.session().run([operation]))
        else:
            session.note(operation)
            loop.call_soon_threadsafe(session.send_noted)

    def _updated(self, declared: Declaration, former: Declaration | None = None) -> str:
        self.check(declared)
        return self.limits.update(declared, former)

    def session(self) -> Session:
        """The lane in the running loop: mostly the same as before."""
        session = self._last
        if (
            session is None
            or session.client.loop is not asyncio._get_running_loop()
            or session.client.closed
        ):
            session = self._last = self._store.session(self)
            if session not in self._sessions:
                self._sessions.append(session)
        self.leave_closed()
        return session

    def leave_closed(self) -> None:
        """Hand the lanes of closed loops over to the portal. The usual single lane is in use, so it needs no check."""
        if len(self._sessions) < 2:
            return
        closed = [session for session in list(self._sessions) if session.client.loop.is_closed()]
        for session in closed:
            with contextlib.suppress(ValueError):  # another thread was faster
                self._sessions.remove(session)
        if closed:
            self._store.end_closed()

    def adopt(self, session: Session) -> None:
        """In the portal: go on with a lane whose loop has ended. The tasks of that loop hold nothing any more."""
        for permit in self._inside.left_behind(
            session.client.loop if session.client.abandoned else None
        ):
            permit.release()
        move(session, self._store.client())
        if session not in self._sessions:
            self._sessions.append(session)

    def sessions_of(self, loop: asyncio.AbstractEventLoop) -> list[Session]:
        return [session for session in list(self._sessions) if session.client.loop is loop]

    def loops(self) -> set[asyncio.AbstractEventLoop]:
        """The loops that have something to say for this name, or had."""
        return {session.client.loop for session in list(self._sessions)}

    def idle(self) -> bool:
        """Whether nothing would be missed if this line were forgotten."""
        return all(session.idle for session in list(self._sessions))

    def forked(self) -> None:
        """In the child of a fork: lanes are the parent's."""
        self._last = None
        self._sessions = []

    # Ways in -------------------------------------------------------------------------------------------------------------

    async def enter_later(self, request: Request) -> None:
        session = self.session()
        grant, pending = await session.acquire(request, enters=True)
        if pending.permit is not None:
            self._inside.entered(pending.permit, session.client.task)
        elif pending.believed is None:
            self._inside.passed()
        else:
            self._inside.entered(
                self._permit(session, request, grant, pending), session.client.task
            )

    def enter_sync(self, request: Request) -> None:
        permit = self.acquire_sync(request)
        if not permit.held:
            self._inside.passed()
            return
        try:
            self._inside.entered(permit)
        except BaseException:  # a signal handler's: the block does not begin
            permit.release()
            raise

    async def acquire(self, request: Request) -> Permit:
        session = self.session()
        return self._permit(session, request, *await session.acquire(request))

    def _permit(
        self, session: Session, request: Request, grant: Grant, pending: PendingAcquire
    ) -> Permit:
        permit = Permit(
            self, request.units, grant, pending.waited, pending.caller, pending.believed, session
        )
        if permit.held:
            session.renewal.hold(permit, pending.lease)
        return permit

    def acquire_sync(self, request: Request) -> Permit:
        permit = self.quickly(request)
        return self.waited(request, self.acquire) if permit is None else permit

    def quickly(self, request: Request) -> Permit | None:
        """By this thread itself, if it can pass this instant.

        StoreError when `max_sleep` was spent on a server that is silent, and in headgate's own thread.
        """
        check_thread()
        start = monotonic()
        if start < self._no_fast_path:
            return None
        permit = self._store.fast_path().acquire(self, request)
        if permit is not None:
            return permit
        spent = monotonic() - start
        if request.max_sleep is not None and spent >= max(SILENCE, request.max_sleep / 1_000_000):
            raise cannot(self._store.topology, TimeoutError())
        return None

    def check_thread(self) -> None:
        """StoreError in headgate's own thread, which must not wait."""
        check_thread()

    def blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work` for a thread without a loop, done where its other calls are.

        A permit that comes too late, because a signal handler has interrupted the thread, goes back.
        """
        return blocking(work, self.name, give_back)

    def waited(self, request: Request, acquire: Acquiring) -> Permit:
        """By the portal. The thread itself calls the `on_wait` of the request."""
        closing = request.closing  # noqa: F841 - a close in a signal handler of this thread finds it in the stack
        loop, on_wait = asyncio._get_running_loop(), request.on_wait
        if loop is not None:
            self._check_held_here(loop, request)
            on_wait = self._warn_of_blocking if on_wait is None else on_wait
        if on_wait is None:
            return self.blocking(lambda: acquire(request))
        call: Call[Permit] = Call(lambda: acquire(telling), self.name, give_back, on_wait)
        telling = told_by(request, call.say)
        return answer_of(call)

    def _check_held_here(self, loop: asyncio.AbstractEventLoop, request: Request) -> None:
        """RuntimeError when tasks of `loop`, which the caller is about to block, hold what it waits for."""
        session = self._store.known_session(self, loop)
        if session is None or request.max_sleep is not None:
            return
        for unit, capacity in self.declared.capacity.items():
            cost = request.units.get(unit, ONE_EACH.get(unit, 0))
            if (
                unit not in self.declared.rated
                and cost
                and session.renewal.units_held(unit) + cost > capacity
            ):
                raise waits_for_ever(
                    self.name, "the permits that its tasks hold go back only while it runs"
                )

    def _warn_of_blocking(self, waiting: Waiting) -> None:
        if not self._warned:
            self._warned = True
            warn_of_blocking(self.name)

    def found(self, request: Request, found: Passed, waited: float, home: FastPath) -> Permit:
        """The permit of a grant that the shortcut was given."""
        permit = Permit(
            self, request.units, found.grant, waited, found.caller, found.believed, home
        )
        if permit.held and home.process == os.getpid():
            self._by_portal(lambda session: session.renewal.hold(permit, found.lease))
        return permit

    def unsure(self, caller: str) -> None:
        """Take back what `caller` may have been granted."""
        self._by_portal(lambda session: session.post(f"cancel 0 {caller}"))

    async def atake(self, request: Request) -> Permit | Refusal:
        rest = request.retry_for, request.raises, request.closing
        try:
            return await self.acquire(Request(request.units, 0, None, None, *rest))
        except MaxSleepExceededError as refused:
            return Refusal(refused.retry_after)

    def take(self, request: Request) -> Permit | Refusal:
        return self.blocking(lambda: self.atake(request))

    # Ways back -----------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """To who enters next, or to the server. Nobody else has such a permit in hand."""
        permit = self._inside.left(self._visitor)
        if permit is None:
            return
        session = permit.home
        if not isinstance(session, Session) or not session.client.here or session.client.closed:
            permit.release()
        elif not session.handoff.hand_over(permit):
            if permit.lost:
                log_lost(self.name, [permit])
            permit.held = False
            session.post(f"release {permit.key}")

    def _visitor(self) -> Hashable:
        session = self._last
        return (session and session.client.task) or visitor()

    def release(self, permit: Permit) -> None:
        if self._claimed(permit):
            words = f"release {permit.key}"
            try:
                self._home(permit, words)
            except (
                BaseException
            ):  # a signal handler's, before or after it was posted: twice is harmless
                self._home(permit, words)
                raise

    async def arelease(self, permit: Permit) -> bool:
        loop, held = asyncio._get_running_loop(), permit.held
        if loop is None:  # the collector closes a coroutine that gives back at its end
            self.release(permit)
            return held and not permit.lost
        if not self._claimed(permit):
            return False
        session = permit.home
        if not isinstance(session, Session) or session.client.loop is not loop:
            session = self.session()
        return bool((await session.ask(f"release {permit.key}"))[1])

    def abandon(self, permit: Permit) -> None:
        """Release from a finalizer, which may run in the middle of anything, so later; where no loop is left, the lease ends."""
        home = permit.home
        loop = home.client.loop if isinstance(home, Session) else portal_loop()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.release, permit)

    def settle(self, permit: Permit, extras: Units) -> None:
        if extras:
            self._home(permit, f"settle {permit.t} {cost_text(extras)}")

    def _claimed(self, permit: Permit) -> bool:
        """Whether it is ours to give back: once, and not by a child of a fork."""
        if not permit.held:
            return False
        home = permit.home
        ours = (
            home.client if isinstance(home, Session) else cast("FastPath", home)
        ).process == os.getpid()
        if ours and permit.lost:
            log_lost(self.name, [permit])
        # No call stands in the next line, so neither a thread nor a signal handler comes in between.
        held, permit.held = permit.held, False
        return held and ours

    def _home(self, permit: Permit, words: str) -> None:
        """Send `words` from the loop that the permit came from, or by the portal when that loop is gone, or the parent's."""
        session = permit.home
        if (
            not isinstance(session, Session)
            or session.client.closed
            or session.client.process != os.getpid()
        ):
            self._by_portal(lambda its: its.post(words))
        elif (
            session.client.loop is portal_loop() and session.client.thread != threading.get_ident()
        ):
            portal().tell(lambda: session.post(words))
        elif session.client.task is not None:
            session.post(words)
        else:
            session.note(
                Operation(words, ignore_reply)
            )  # a loop that never runs again leaves it to the portal
            try:
                session.client.loop.call_soon_threadsafe(session.send_noted)
            except RuntimeError:  # it was closed this moment
                self._by_portal(lambda _: session.rescue())

    def _by_portal(self, operation: Callable[[Session], None]) -> bool:
        """False when the process ends: so do its leases."""
        try:
            portal().tell(lambda: operation(self.session()))
        except NoPortalError:
            return False
        return True

    # Looking -------------------------------------------------------------------------------------------------------------

    async def astatus(self, own: Declaration | None = None) -> Status:
        """What holds in the store; where no process has declared limits, what `own` would be with nothing used."""
        answer = await self.session().ask("status -")
        if answer == UNKNOWN:
            return self._saw(unused(self.name, own or self.declared))
        program, waiting, delay, paused, *left = answer
        declared = self.declared if self.declared.program == program else read_program(program)
        return self._saw(
            status_of(self.name, declared, declared.rules(), left, waiting, delay, paused)
        )

    def _saw(self, status: Status) -> Status:
        self._seen = status, monotonic()
        return status

    def status(self, own: Declaration | None = None) -> Status:
        return self.blocking(partial(self.astatus, own))

    def describe(self) -> str:
        """The status as it was seen last, or the limits: without asking the server."""
        if self._seen is None:
            return f"{in_words(self.declared.program)} (not asked yet), on {self._store}"
        status, moment = self._seen
        age = monotonic() - moment
        return f"{status.line()}{f' ({age:.0f} s ago)' if age >= 1 else ''}, on {self._store}"


def give_back(answer: object) -> None:
    """Release a permit that its thread does not wait for any more."""
    if isinstance(answer, Permit):
        answer.release()


def check_windows(name: str, declared: Declaration) -> None:
    windows = declared.program.count("window ")
    if windows > LOGS:
        raise ValueError(
            f"Limiter({unquote(name)!r}) has {windows} Window limits (a text such as '100/minute' is one), "
            f"and on Redis it may have {LOGS}; drop some, or give a text a burst: '100/minute burst 20' is a Rate."
        )
