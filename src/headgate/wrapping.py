"""A queue around another, and an issuer around another, which pass calls on.

A subclass has acquires of its own, or adds an action when a permit is granted or released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.changes import Change
from headgate.gate.compile import Declaration
from headgate.interfaces import Queue
from headgate.permit import Issuer, Permit, Refusal
from headgate.request import Request
from headgate.stores.memory.fast_path import not_at_once
from headgate.stores.status import Status

T = TypeVar("T", Permit, Permit | Refusal)


class OuterQueue:
    """Passes on all calls but the acquires, which a subclass has. There is no fast path."""

    def __init__(self, queue: Queue) -> None:
        self.name = queue.name
        self.enter = self.enter_task = not_at_once
        self._queue = queue

    @property
    def declared(self) -> Declaration:
        return self._queue.declared

    def follow(self, declared: Declaration) -> None:
        self._queue.follow(declared)

    def foresee(self, declared: Declaration) -> Declaration:
        return self._queue.foresee(declared)

    def accept(self, declared: Declaration, known: bool) -> None:
        self._queue.accept(declared, known)

    async def learn(self) -> Declaration:
        return await self._queue.learn()

    def learn_sync(self) -> Declaration:
        return self._queue.learn_sync()

    async def check_in_use(self) -> None:
        await self._queue.check_in_use()

    def once_known(self, call: str, act: Callable[[], None], in_use: bool = False) -> None:
        self._queue.once_known(call, act, in_use)

    def change(self, change: Change) -> None:
        self._queue.change(change)

    async def achange(self, change: Change) -> None:
        await self._queue.achange(change)

    def status(self, own: Declaration | None = None) -> Status:
        return self._queue.status(own)

    async def astatus(self, own: Declaration | None = None) -> Status:
        return await self._queue.astatus(own)

    def describe(self) -> str:
        return self._queue.describe()

    def flush(self) -> None:
        self._queue.flush()

    async def aflush(self) -> None:
        await self._queue.aflush()


class QueueWrapper(OuterQueue):
    """Passes the acquires on, too, and each answer through `_wrapped` on its way back."""

    def _wrapped(self, answer: T) -> T:
        raise NotImplementedError

    async def acquire(self, request: Request) -> Permit:
        return self._wrapped(await self._queue.acquire(request))

    def acquire_sync(self, request: Request) -> Permit:
        return self._wrapped(self._queue.acquire_sync(request))

    async def atake(self, request: Request) -> Permit | Refusal:
        return self._wrapped(await self._queue.atake(request))

    def take(self, request: Request) -> Permit | Refusal:
        return self._wrapped(self._queue.take(request))


class IssuerWrapper:
    """Passes all calls on. Before a release it calls `_before_release`."""

    def __init__(self, queue: Issuer) -> None:
        self.name = queue.name
        self.owns, self.settle, self.change = queue.owns, queue.settle, queue.change
        self._queue = queue

    def _before_release(self, permit: Permit) -> None:
        raise NotImplementedError

    @property
    def declared(self) -> Declaration:
        return self._queue.declared

    def release(self, permit: Permit) -> None:
        self._before_release(permit)
        self._queue.release(permit)

    async def arelease(self, permit: Permit) -> bool:
        self._before_release(permit)
        return await self._queue.arelease(permit)

    def abandon(self, permit: Permit) -> None:
        self._queue.abandon(permit)
