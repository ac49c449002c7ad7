"""The time for which permits are held, for `headgate.telemetry`.

Only the limiters of a program that asks for it are timed, so others have no cost.
"""

from __future__ import annotations

from time import monotonic
from typing import TypeVar

from headgate.counts import note_release
from headgate.interfaces import Queue
from headgate.permit import Issuer, Permit, Refusal, redirect
from headgate.request import Request
from headgate.stores.context_stack import ContextStack
from headgate.wrapping import IssuerWrapper, QueueWrapper

T = TypeVar("T", Permit, Permit | Refusal)


class Timed(QueueWrapper):
    """Times each permit that holds capacity, from its grant to its release."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._inside = ContextStack()
        self.leave = self._inside.leave

    def _wrapped(self, answer: T) -> T:
        if isinstance(answer, Permit) and answer.held:
            redirect(answer, Timing)
        return answer

    async def enter_waiting(self, request: Request) -> None:
        self._inside.note_entry(await self.acquire(request))

    def enter_sync(self, request: Request) -> None:
        self._inside.note_entry(self.acquire_sync(request))


class Timing(IssuerWrapper):
    def __init__(self, queue: Issuer) -> None:
        super().__init__(queue)
        self._since = monotonic()

    def _before_release(self, permit: Permit) -> None:
        if permit.held:
            note_release(self.name, monotonic() - self._since)
