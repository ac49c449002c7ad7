"""Asks for the pause of a whole limiter, on behalf of the sessions of its keys in one loop.

A call of a key leaves at once while the last answer is fresh. Otherwise it waits for an answer, but
not for long: in a Cluster the whole may be on another server, which may be away.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.errors import StoreError
from headgate.stores.redis.protocol.operations import AskStatus, Watch
from headgate.stores.redis.protocol.replies import UNKNOWN

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from headgate.stores.redis.protocol.operations import Operation
    from headgate.stores.redis.session.numbering import LastReply
    from headgate.stores.redis.session.whole_pause import WholePause
    from headgate.stores.redis.transport.client import Client

PATIENCE = 0.5  # seconds for which a call of a key waits for the answer


class Whole(Protocol):
    """The queue of the whole limiter."""

    @property
    def pause(self) -> WholePause: ...
    def note_pause(self, server_now: int, left: int, asked_at: float = 0.0) -> None: ...


class WholeSession(Protocol):
    """The session of the whole limiter in one loop."""

    @property
    def key(self) -> str: ...
    @property
    def client(self) -> Client: ...
    @property
    def last_reply(self) -> LastReply: ...
    def ask(self, operation: Operation) -> Future[Any]: ...


class Keyed(Protocol):
    """The session of a key in the same loop."""

    def send_on(self) -> None: ...


class PauseWatch:
    """Asks for the pause of the whole limiter, for the sessions of its keys in one loop."""

    def __init__(self, whole: Whole, session: WholeSession) -> None:
        self._whole = whole
        self._session = session
        self._asking = False  # a question has no answer yet
        self._silent = False  # and none came within PATIENCE
        self._timer: TimerHandle | None = None
        self._held_up: dict[Keyed, None] = {}  # sessions whose calls wait for the answer
        self._look: Future[Any] | None = None  # the answer for a status
        self._looked_at = 0.0

    @property
    def active(self) -> bool:
        """Whether keys were used lately, so that this session needs notifications."""
        return monotonic() < self._whole.pause.trusted_until

    def allows(self, session: Keyed, now: float) -> bool:
        """Whether a call of `session` may leave. Otherwise it leaves after the answer."""
        pause, client = self._whole.pause, self._session.client
        if client.availability.is_unavailable(self._session.key):
            return True
        if not self._asking:
            self._ask(now)
        if self._silent or now < pause.trusted_until:
            return True
        self._held_up[session] = None
        return False

    async def look(self) -> None:
        """Learn the pause for a status, if its server answers. This creates no state."""
        now, unavailable = monotonic(), self._session.client.availability.is_unavailable
        if now < self._whole.pause.trusted_until or unavailable(self._session.key):
            return
        if self._look is None or self._look.done():  # the statuses of many keys share one
            self._look, self._looked_at = self._session.ask(AskStatus()), now
        with suppress(StoreError):  # the key may be on another server
            self._note(await asyncio.shield(self._look), self._looked_at)

    def _ask(self, now: float) -> None:
        """A signal handler may raise in each line. `_asking` is last, so another call asks."""
        self._silent = False
        self._timer = self._session.client.loop.call_later(PATIENCE, self._on_silence)
        self._session.ask(Watch()).add_done_callback(partial(self._on_answer, now))
        self._asking = True

    def _on_answer(self, asked_at: float, answer: Future[Any]) -> None:
        self._asking = self._silent = False
        if self._timer is not None:
            self._timer.cancel()
        if answer.cancelled() or answer.exception() is not None:
            self._whole.pause.do_without(monotonic())
        else:
            self._note(answer.result(), asked_at)
            self._whole.pause.trust(asked_at)
            self._session.client.subscriptions.listen(cast("Any", self._session))
        self._let_go()

    def _note(self, answer: Any, asked_at: float) -> None:
        left = 0 if answer == UNKNOWN else answer.paused
        self._whole.note_pause(self._session.last_reply.server, left, asked_at)

    def _on_silence(self) -> None:
        self._silent = True
        self._let_go()

    def _let_go(self) -> None:
        for session in list(self._held_up):
            # An exception of a signal handler leaves the others for the next time.
            del self._held_up[session]
            session.send_on()
