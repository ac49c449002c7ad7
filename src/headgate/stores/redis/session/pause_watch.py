"""Asks for the pause of a whole limiter, on behalf of the sessions of its keys in one loop.

A call of a key leaves at once while the last answer is fresh. Otherwise it waits for an answer, but
not for long: in a Cluster the whole may be on another server, which may be away.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from headgate.errors import StoreError
from headgate.stores.redis.protocol.operations import AskStatus, Watch
from headgate.stores.redis.protocol.replies import UNKNOWN

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from headgate.stores.redis.session.loop_session import LoopSession

PATIENCE = 0.5  # seconds for which a call of a key waits for the answer


class PauseWatch:
    """Before a call of a key leaves, Routing asks `allows`, unless the last answer is fresh."""

    def __init__(self, session: LoopSession) -> None:
        """`session`: that of the whole limiter in this loop."""
        self._session = session
        self._pause = session.queue.pause
        self._asking = False  # a question has no answer yet
        self._silent = False  # and no fresh answer came within PATIENCE
        self._timer: TimerHandle | None = None
        self._held_up: dict[LoopSession, None] = {}  # sessions whose calls wait for the answer
        self._look: Future[Any] | None = None  # the answer for a status
        self._looked_at = 0.0

    def allows(self, session: LoopSession, now: float) -> bool:
        """Whether a call of `session` may leave. Otherwise it leaves after the answer."""
        if self._session.client.availability.is_unavailable(self._session.key):
            return True
        if not self._asking:
            self._ask(now)
        if self._silent or now < self._pause.trusted_until:
            return True
        self._held_up[session] = None
        return False

    async def look(self) -> None:
        """Learn the pause for a status, if its server answers. This creates no state."""
        now, unavailable = monotonic(), self._session.client.availability.is_unavailable
        if now < self._pause.trusted_until or unavailable(self._session.key):
            return
        if self._look is None or self._look.done():  # the statuses of many keys share one
            self._look, self._looked_at = self._session.ask(AskStatus()), now
        with suppress(StoreError):  # the key may be on another server
            self._note(await asyncio.shield(self._look), self._looked_at)

    def _ask(self, now: float) -> None:
        """Ask. `_asking` is set last: after an exception of a signal handler, a later call asks.

        If the process pauses again and again, each answer is too old. So the timer of the first
        question goes on.
        """
        if self._timer is None:
            self._silent = False
            self._timer = self._session.client.loop.call_later(PATIENCE, self._on_silence)
        self._session.ask(Watch()).add_done_callback(partial(self._on_answer, now))
        self._asking = True

    def _on_answer(self, asked_at: float, answer: Future[Any]) -> None:
        self._asking = False
        if answer.cancelled() or answer.exception() is not None:
            self._pause.do_without(monotonic())
        else:
            self._note(answer.result(), asked_at)
            self._pause.trust(asked_at)
            self._session.client.subscriptions.listen(self._session)
        if self._timer is not None and monotonic() < self._pause.trusted_until:
            self._timer.cancel()
            self._timer = None
        self._let_go()

    def _note(self, answer: Any, asked_at: float) -> None:
        left = 0 if answer == UNKNOWN else answer.paused
        server_now = self._session.machine.numbering.last_reply.server_time
        self._session.queue.routing.note_pause(server_now, left, asked_at)

    def _on_silence(self) -> None:
        self._silent, self._timer = True, None
        self._let_go()

    def _let_go(self) -> None:
        for session in list(self._held_up):
            # An exception of a signal handler leaves the others for the next time.
            del self._held_up[session]
            session.poll()
