"""The queue of one name on Redis: it passes requests on to the session of the caller's loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.changes import Drain, Pause, Reset, Resume, Update
from headgate.errors import HeadgateError, MaxSleepExceededError, StoreError
from headgate.gate.compile import Declaration, read_program
from headgate.keys import title
from headgate.log_writer import log
from headgate.permit import Permit, Refusal
from headgate.request import Request, Try
from headgate.stores.change_events import note_change
from headgate.stores.context_stack import ContextStack
from headgate.stores.limit_history import in_words
from headgate.stores.memory.fast_path import not_at_once
from headgate.stores.redis.limit_sync import LimitSync
from headgate.stores.redis.permit_issuer import PermitIssuer
from headgate.stores.redis.protocol import operations
from headgate.stores.redis.protocol.operations import AskDeclared, AskInUse, AskStatus
from headgate.stores.redis.protocol.replies import UNKNOWN
from headgate.stores.redis.routing import Routing
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.whole_pause import WholePause
from headgate.stores.redis.threads import FastPaths, Threads
from headgate.stores.refusals import unknown_limiter
from headgate.stores.status import Status, status_of, unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.changes import Change
    from headgate.stores.redis.protocol.operations import Operation, Outcome
    from headgate.stores.redis.protocol.replies import Answer
    from headgate.stores.redis.transport.client import Client


CHANGE_TTL = 10.0  # seconds after which a change, other than a pause, is not sent again


class Store(FastPaths, Protocol):
    def client(self) -> Client: ...
    def whole_queue(self, name: str, declared: Declaration) -> RedisQueue | None: ...
    def queues(self) -> list[RedisQueue]: ...
    async def flush(self, name: str) -> None: ...


class RedisQueue:
    enter = enter_task = staticmethod(not_at_once)  # no caller enters without the server

    def __init__(self, store: Store, name: str, declared: Declaration) -> None:
        self.name = name
        self.key = f"headgate:{{{name}}}"
        self.limits = LimitSync(name, declared)
        self._last_status: tuple[Status, float] | None = None  # and the time of its reply
        self._store = store
        # For a key: the queue of the whole limiter. A pause of the whole holds for all its keys.
        self.whole = store.whole_queue(name, declared)
        self.pause: WholePause = WholePause() if self.whole is None else self.whole.pause
        self.routing = Routing(self, store)
        self.acquire = self.routing.acquire
        self.issuer = PermitIssuer(name, self.key, self.limits, self.routing, self.change)
        self.threads = Threads(self, store)
        self._inside = ContextStack()

    @property
    def declared(self) -> Declaration:
        return self.limits.present

    def follow(self, declared: Declaration) -> None:
        self.limits.follow(declared)

    def foresee(self, declared: Declaration) -> Declaration:
        return self.limits.foresee(declared)

    def accept(self, declared: Declaration, known: bool) -> None:
        self.limits.accept(declared, known)

    # Limits from the store ------------------------------------------------------------------------

    async def learn(self) -> Declaration:
        """Ask for the limits, if none are known. The session notes those that the reply names."""
        if not self.limits.has_limits:
            check_known(self.name, await self.routing.session().ask(AskDeclared()))
        return self.limits.present

    def learn_sync(self) -> Declaration:
        return self.threads.blocking(self.learn)

    async def check_in_use(self) -> None:
        if not self.limits.has_limits:
            check_known(self.name, await self.routing.session().ask(AskInUse()), in_use=True)

    def once_known(self, call: str, act: Callable[[], None], in_use: bool = False) -> None:
        """Run `act` when the name is known to have limits.

        If it has none, or if `act` fails, log that `call` has not happened.
        """
        if self.limits.has_limits:
            act()
            return

        def on_reply(answer: Outcome) -> None:
            try:
                check_known(self.name, answer, in_use)
                act()
            except Exception as error:  # the session must read the rest of the reply
                why = error if isinstance(error, HeadgateError) else repr(error)
                name = title(self.name)
                log(logging.WARNING, "%s of %s has not happened: %s", call, name, why)

        ask = AskInUse if in_use else AskDeclared
        self.routing.post(ask(asker=Callback(on_reply)))

    # Changes, and the flush -----------------------------------------------------------------------

    def change(self, change: Change) -> None:
        if self.whole is not None and isinstance(change, Pause) and change.whole:
            self.whole.change(change)
            return
        until = monotonic() + CHANGE_TTL
        if isinstance(change, Pause):
            until = monotonic() + change.time / 1_000_000
            # Until then, no fast path: an acquire on its connection could overtake this pause.
            self.threads.no_fast_path_until = max(self.threads.no_fast_path_until, until)
        self.routing.post(self._begin(change, until))

    async def achange(self, change: Change) -> None:
        if self.whole is not None and isinstance(change, Pause) and change.whole:
            await self.whole.achange(change)
            return
        await self.routing.session().ask(self._begin(change, 0.0))

    def _begin(self, change: Change, until: float) -> Operation:
        """Begin `change` in this process, and return its operation.

        After a failure, most operations are sent again only before `until`. 0.0: never.
        """
        note_change(self.name, change)
        match change:
            case Update(declared=declared, former=former):
                return operations.Update(self.limits.update(declared, former))
            case Pause(time=time):
                return operations.Pause(time, until=until)
            case Resume():
                self.threads.no_fast_path_until = 0.0
                return operations.Resume(until=until)
            case Reset():
                return operations.Reset(until=until)
            case Drain(unit=unit, left=left, limit=limit, since=since):
                return operations.Drain(unit, limit=limit, left=left, since=since, until=until)
        raise TypeError(f"no change of a queue: {change!r}")

    def flush(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"flush() of {title(self.name)} would block the event loop that has to send: "
                "write `await limiter.aflush()`."
            )
        self.threads.blocking(self.aflush)

    async def aflush(self) -> None:
        await self._store.flush(self.name)

    def adopt(self, session: LoopSession) -> None:
        """In the portal: go on with a session whose loop has ended.

        Give back the permits of tasks that will never run again.
        """
        former = session.client
        # `left_behind` finds the closed loops itself, but not one that is open and never runs.
        abandoned = former.loop if former.lifecycle.abandoned else None
        for permit in self._inside.left_behind(abandoned):
            permit.release()
        session.move(self._store.client())
        self.routing.add(session)

    # Acquires -------------------------------------------------------------------------------------

    async def enter_waiting(self, request: Request) -> None:
        session = self.routing.session()
        permit = await session.acquire(request, enters=True)
        if permit is None:
            self._inside.note_pass()
        else:
            self._inside.note_entry(permit, session.client.task)

    def enter_sync(self, request: Request) -> None:
        permit = self.acquire_sync(request)
        if not permit.held:
            self._inside.note_pass()
            return
        try:
            self._inside.note_entry(permit)
        except BaseException:  # a signal handler raised: the block does not begin
            permit.release()
            raise

    def acquire_sync(self, request: Request) -> Permit:
        permit = self.threads.acquire_at_once(request)
        return self.threads.acquire_by_portal(request, self.acquire) if permit is None else permit

    async def atake(self, request: Request) -> Permit | Refusal:
        """Acquire without a wait. A refusal is returned, not raised."""
        retry_for, raises, closing = request.retry_for, request.raises, request.closing
        attempt = Try(request.units, 0, retry_for=retry_for, raises=raises, closing=closing)
        try:
            return await self.acquire(attempt)
        except MaxSleepExceededError as refused:
            return Refusal(refused.retry_after)

    def take(self, request: Request) -> Permit | Refusal:
        return self.threads.blocking(lambda: self.atake(request))

    def leave(self) -> None:
        """End the current block. No other code has its permit, so no second release can come."""
        permit = self._inside.remove_last(self.routing.current_caller)
        if permit is None:
            return
        session = permit.home
        if not isinstance(session, LoopSession) or not session.client.here or session.client.closed:
            permit.release()
        # A waiter of the same session may get the permit without a call.
        elif not (session.traffic.waiting and session.hand_over(permit)):
            self.issuer.release_in(session, permit)

    # Status ---------------------------------------------------------------------------------------

    async def astatus(self, own: Declaration | None = None) -> Status:
        if self.whole is not None:
            await self.whole.routing.watch().look()
        answer = await self.routing.session().ask(AskStatus())
        if answer == UNKNOWN:
            paused = 0 if self.whole is None else self.pause.left(monotonic())
            status = unused(self.name, own or self.declared, paused)
        else:
            program, waiting, delay, paused, left = answer
            declared = self.declared if self.declared.program == program else read_program(program)
            rules = declared.rules()
            status = status_of(self.name, declared, rules, left, waiting, delay, paused)
        self._last_status = status, monotonic()
        return status

    def status(self, own: Declaration | None = None) -> Status:
        return self.threads.blocking(partial(self.astatus, own))

    def describe(self) -> str:
        if self._last_status is None:
            return f"{in_words(self.declared.program)} (no status asked yet), on {self._store}"
        status, moment = self._last_status
        age = monotonic() - moment
        return f"{status.line()}{f' ({age:.0f} s ago)' if age >= 1 else ''}, on {self._store}"


class Callback:
    """A function in place of a future, for one outcome. It is never cancelled, so it gets the
    outcome even if the loop ends.
    """

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, outcome: Any) -> None:
        self._is_done = True
        self._function(outcome)

    set_exception = set_result

    def cancel(self) -> None:
        pass


def check_known(name: str, answer: Outcome, in_use: bool = False) -> None:
    """Raise the error of a failed question, or UnknownLimiterError if the name has no limits.

    `in_use`: a state is enough, even if no process has declared limits.
    """
    if isinstance(answer, StoreError):
        raise answer
    has_state = answer != UNKNOWN
    has_limits = has_state and bool(cast("Answer", answer).number)
    if not (has_state if in_use else has_limits):
        raise unknown_limiter(name)
