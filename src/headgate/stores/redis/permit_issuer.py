"""The permits of one name on Redis: renewed, settled and given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, cast

from headgate.counts import counts_of
from headgate.request import cost_text
from headgate.stores.redis.protocol.operations import Cancel, Release, Settle
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.lost_leases import log_those_lost
from headgate.stores.redis.transport.portal import portal_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.changes import Change
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units
    from headgate.permit import Permit
    from headgate.stores.redis.fast_path import FastPath
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Caller
    from headgate.stores.redis.routing import Routing


class PermitIssuer:
    """The part of a queue that its permits call. The fast path knows it as a `FastIssuer`."""

    def __init__(
        self,
        name: str,
        key: str,
        limits: LimitSync,
        routing: Routing,
        change: Callable[[Change], None],
    ) -> None:
        self.name = name
        self.key = key
        self.limits = limits
        self.change = change  # the method of the queue
        self._routing = routing

    @property
    def declared(self) -> Declaration:
        return self.limits.declared

    # The fast path --------------------------------------------------------------------------------

    def hold(self, permit: Permit, lease: int) -> None:
        """Renew a permit of the fast path in the portal."""
        self._routing.by_portal(lambda session: session.hold(permit, lease))

    def cancel_uncertain(self, caller: Caller) -> None:
        """Cancel an acquire of the fast path that may have been granted."""
        self._routing.by_portal(lambda session: session.run([Cancel(caller)]))

    # Releases and settlements ---------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        if self._claim(permit):
            try:
                self._routing.send_home(permit, release_of(permit))
            except BaseException:  # A signal handler raised. A second release is harmless.
                self._routing.send_home(permit, release_of(permit))
                raise

    async def arelease(self, permit: Permit) -> bool:
        loop, held = asyncio._get_running_loop(), permit.held
        if loop is None:  # the garbage collector closes a coroutine, and no loop runs
            self.release(permit)
            return held and not permit.lost
        if not self._claim(permit):
            return False
        session = permit.home
        if not isinstance(session, LoopSession) or session.client.loop is not loop:
            session = self._routing.session()
        return bool((await session.ask(release_of(permit))).number)

    def release_in(self, session: LoopSession, permit: Permit) -> None:
        """Release a permit of `session` in its loop. No other code has the permit, so no check is
        needed.
        """
        if permit.lost:
            log_those_lost(self.name, [permit])
        release = release_of(permit)
        permit.held = False
        session.run([release])

    def abandon(self, permit: Permit) -> None:
        """Release from a finalizer, a little later. Without a loop, the lease ends by itself."""
        home = permit.home
        loop = home.client.loop if isinstance(home, LoopSession) else portal_loop()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.release, permit)

    def owns(self, permit: Permit) -> bool:
        home = permit.home
        owner = home.client if isinstance(home, LoopSession) else cast("FastPath", home)
        return owner.process == os.getpid()

    def settle(self, permit: Permit, extras: Units) -> None:
        if extras:
            counts_of(self.name).costs.settle(extras)
            self._routing.send_home(permit, Settle(permit.t, cost_text(extras)))

    def _claim(self, permit: Permit) -> bool:
        """End the permit in this process. True: this caller has to give it back.

        False for the second caller, and in the child of a fork.
        """
        if not permit.held:
            return False
        ours = self.owns(permit)
        if ours and permit.lost:
            log_those_lost(self.name, [permit])
        # The next line makes no call, so neither a thread nor a signal handler comes in between.
        held, permit.held = permit.held, False
        return held and ours


def release_of(permit: Permit) -> Release:
    return Release(cast("Caller", permit.key))
