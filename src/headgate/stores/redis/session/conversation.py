"""The part of a session that its own parts use.

The parts are the local hand-off, the renewal of leases, recovery and reply timeouts. They import
this protocol, and the session imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Iterable

    from headgate.errors import StoreError
    from headgate.gate.compile import Declaration
    from headgate.stores.redis.protocol.operations import Operation
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.traffic import Traffic


class Conversation(Protocol):
    """The session, as its parts see it."""

    asked_at: float  # when the call that was answered last was sent, by the monotonic clock
    traffic: Traffic
    lease: int  # microseconds, by the limits that it was asked under

    @property
    def name(self) -> str: ...
    @property
    def declared(self) -> Declaration: ...
    @property
    def loop(self) -> AbstractEventLoop: ...
    @property
    def waits(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    def withdraw(self, pending: PendingAcquire) -> None: ...
    def fail(self, acquires: Iterable[PendingAcquire], error: StoreError) -> None: ...
    def cannot(self, lost: BaseException) -> StoreError: ...
    def run(self, operations: list[Operation]) -> None: ...
    def send_operations(self) -> None: ...
