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
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

from headgate.errors import HeadgateError, MaxSleepExceededError, StoreError
from headgate.gate.gate import ONE_EACH
from headgate.gate.rules import Declaration, read_program
from headgate.keys import title
from headgate.logs import log
from headgate.permit import Permit, Refusal
from headgate.request import Request, cost_text
from headgate.stores.context_stack import Inside, visitor
from headgate.stores.limit_history import HOLD, Declarations, in_words, warn_of_processes
from headgate.stores.loops import waits_for_ever, warn_of_blocking
from headgate.stores.memory.fast_path import shut
from headgate.stores.redis.blocking.portal import (
    Call,
    NoPortalError,
    answer_of,
    blocking,
    check_thread,
    portal,
    portal_loop,
)
from headgate.stores.redis.protocol.messages import (
    ASKED,
    DECLARED,
    KNOWN,
    UNKNOWN,
    UPDATED,
    Operation,
    Statement,
    how_said,
    ignore_reply,
    told_by,
)
from headgate.stores.redis.session.delivery import note, rescue, send_noted
from headgate.stores.redis.session.lost_leases import log_lost
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.transport.endpoint import SILENCE
from headgate.stores.redis.transport.failures import cannot
from headgate.stores.redis.transport.shutdown import report
from headgate.stores.refusals import unknown_limiter
from headgate.stores.status import Status, status_of, unused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Sequence

    from headgate.gate.gate import Grant, Units
    from headgate.stores.redis.blocking.fast_path import FastPath, Passed
    from headgate.stores.redis.protocol.messages import Answer, PendingAcquire
    from headgate.stores.redis.store import RedisStore
    from headgate.waiting import Waiting

    Acquiring = Callable[[Request], Coroutine[Any, Any, Permit]]

T = TypeVar("T")
WORTH = (
    10.0  # seconds for which it is worth saying to a server that was away what holds at this moment
)
ENDED = "this process has closed its connections."
LOGS = 4  # windows that a log has room for


class RedisQueue:
    """The queue of one name on one server."""

    def __init__(self, store: RedisStore, name: str, declared: Declaration) -> None:
        self.name = name
        self.key = f"headgate:{{{name}}}"
        self.declared = declared
        self.declares = ASKED  # until an acquire declares the limits; and then, until a call has carried the declaration there
        self._seen: tuple[Status, float] | None = None  # by the last reply to a look, and when
        self._heard: Declaration | None = (
            None  # what holds in the store, as long as nothing is declared here
        )
        self._said = Declarations()
        self._turned_down: Declaration | None = (
            None  # what we have declared, and another process has replaced just now
        )
        self._until = 0.0  # and until when it need not be declared again
        self._no_fast_path = 0.0  # in a pause of ours, which another connection might overtake
        self._comes_again = False  # and it will be, by itself: no update holds
        self._warned = False  # that a thread blocks its event loop
        self.enter = self.enter_task = shut
        self._store = store
        self._last: Session | None = None  # that was asked for here
        self._sessions: list[
            Session
        ] = []  # one for each loop, kept here alone while idle; other threads change the list: copy it
        self._inside = Inside()

    # What is declared ----------------------------------------------------------------------------------------------------
    #
    # All loops and threads of the process change this, and none may wait for another: who has interrupted that one, in a signal
    # handler or a finalizer, may wait for an answer of this loop. So there is no lock. Each change looks and assigns with no call
    # and no new object between the two: Python runs neither a thread, nor a signal handler, nor a finalizer there.

    def follow(self, declared: Declaration) -> None:
        """An acquire declares its limits: the last declaration wins, unless an update or another process has overruled it."""
        known = self.declared
        if self._may_declare(declared):
            self._said.declare(declared.program)
            if self.declared is known:  # and no signal handler has updated them meanwhile
                self._turned_down, self.declared, self.declares = None, declared, DECLARED

    def foresee(self, declared: Declaration) -> Declaration:
        """What would hold for this process if `declared` were declared now."""
        return declared if self._may_declare(declared) else self.declared

    def _may_declare(self, declared: Declaration) -> bool:
        program, present, turned_down = declared.program, self.declared.program, self._turned_down
        if turned_down and turned_down.program == program and monotonic() < self._until:
            return False
        known = program == present and self.declares != ASKED
        return not (known or self._said.overruled(program, present))

    def said(
        self, asks: bool = True, operations: list[Operation] | None = None
    ) -> tuple[Declaration, int]:
        """The limits that a call names, and what it says of them: a call that `asks` for permits declares ours.

        Read the other way round than they are written: earlier ones are no update.
        """
        if self.declares == ASKED:
            if asks and self.declares == ASKED:
                self.declares = DECLARED
            if self._heard is not None and self.declares == ASKED:
                return self._heard, how_said(ASKED, asks, operations or [])
        declares = self.declares
        return self.declared, how_said(declares, asks, operations or [])

    def carried(self, program: str, how: int) -> None:
        """A call that said so was carried out: unless something else was declared meanwhile, it is known."""
        if how in (DECLARED, UPDATED) and self.declares == how and self.declared.program == program:
            self.declares = KNOWN

    def read(self, program: str) -> Declaration:
        """The limits that the server says hold. When they are damaged, the next call declares ours again."""
        try:
            return read_program(program)
        except ValueError:
            self._turned_down, self.declares = None, self.declares or DECLARED
            raise

    def overruled(self, holds: Declaration) -> bool:
        """Others have declared something else than was known here. False: so have we."""
        known = self.declares == KNOWN
        if known:
            self.declared = holds
        elif self.declares == ASKED:
            self._heard = holds
        return known or self.declares == ASKED

    def turned_down(self, program: str, holds: Declaration, wait: int) -> bool:
        """What we have declared must wait for `wait` microseconds (-1: as long as an update holds): what holds, holds for us.

        False: something else was declared meanwhile.
        """
        until = monotonic() + (HOLD if wait < 0 else wait) / 1_000_000
        ours = self.declared
        if self.declares != DECLARED or ours.program != program:
            return False
        self.declared, self.declares, self._turned_down = holds, KNOWN, ours
        self._until, self._comes_again = until, wait >= 0
        if (
            wait >= 0
        ):  # an update is meant to hold, whatever the code of others says: a limit that was adopted, say
            warn_of_processes(self.name, program, holds.program)
        return True

    def declare_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it, in `loop`, that what was turned down is declared again: the loop that heard of it may be gone by then."""
        ours, left = self._turned_down, self._until - monotonic()
        if ours is None or not self._comes_again:
            return
        if left > 0:
            loop.call_later(left, self._declare_again, ours)
        else:
            self._declare_again(ours)

    def _declare_again(self, ours: Declaration) -> None:
        """If nothing else was declared since."""
        if self._turned_down is ours:
            self._turned_down, self.declared, self.declares = None, ours, DECLARED

    # What is taken from the store ----------------------------------------------------------------------------------------

    async def learn(self) -> Declaration:
        """The limits of the name. Raises UnknownLimiterError when no process has declared any."""
        if self.declares == ASKED:
            self._check_known(await self.session().ask("declared"))
        return self._heard or self.declared

    def learn_sync(self) -> Declaration:
        return self.blocking(self.learn)

    def _check_known(self, answer: Sequence[Any]) -> None:
        if answer == UNKNOWN or not answer[1]:
            raise unknown_limiter(self.name)

    def once_known(self, said: str, act: Callable[[], None]) -> None:
        """Do `act`, which `said` names, when the limits are known, and never wait for that."""
        if self.declares != ASKED:
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

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if none are declared here: they are the store's, or (not `known`) those of the present caller."""
        if self.declares == ASKED:
            self.declared, self.declares = declared, KNOWN if known else ASKED

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
            note(session, operation)
            loop.call_soon_threadsafe(send_noted, session)

    def _updated(self, declared: Declaration, former: Declaration | None = None) -> str:
        """The errand that goes with an update: what it overrules, which the server may never have heard of."""
        self.check(declared)
        if former is not None or self.declares == ASKED:
            self._said.declare((former or self.declared).program)
        said, program = self._said, declared.program
        said.update(program)
        said.overruling = program  # again, in one step with what follows: another thread may have updated them meanwhile
        self._turned_down, self.declared, self.declares = None, declared, UPDATED
        return f"update {self._said.last.replace(' ', ',') or '-'}"

    def keys(self, declared: Declaration, declares: int = KNOWN) -> tuple[str, ...]:
        """The keys that the script works on: all share one hash tag. What is replaced by a declaration may have had windows."""
        return keys_of(self.key, declares != KNOWN or "window " in declared.program)

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
        self._store.client().adopt(session)
        if session not in self._sessions:
            self._sessions.append(session)

    def sessions_of(self, loop: asyncio.AbstractEventLoop) -> list[Session]:
        return [session for session in list(self._sessions) if session.client.loop is loop]

    def loops(self) -> set[asyncio.AbstractEventLoop]:
        """The loops that have something to say for this name, or had."""
        return {session.client.loop for session in list(self._sessions)}

    def idle(self) -> bool:
        """Whether nothing would be missed if this line were forgotten."""
        return all(session.idle() for session in list(self._sessions))

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
            note(
                session, Operation(words, ignore_reply)
            )  # a loop that never runs again leaves it to the portal
            try:
                session.client.loop.call_soon_threadsafe(send_noted, session)
            except RuntimeError:  # it was closed this moment
                self._by_portal(lambda _: rescue(session))

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


@lru_cache(maxsize=1024)
def keys_of(key: str, log: bool) -> tuple[str, ...]:
    return (key, f"{key}:who", f"{key}:log") if log else (key, f"{key}:who")
