"""A store that leases, in virtual time: the test decides on the fate of the leases.

No server has this behaviour: grants come from nowhere, renewals succeed or fail by a word of the
test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headgate import Permit
from headgate.gate.compile import Declaration
from headgate.gate.gate import Grant
from headgate.permit import set_lease_end
from headgate.request import Request
from headgate.stores.memory.fast_path import not_at_once
from tests import virtual

LEASE = 10.0  # virtual seconds


class Leases:
    """A queue that grants every request, for one lease, and remembers its permits and the returned
    ones.
    """

    def __init__(self, clock: virtual.VirtualClock, declared: Declaration) -> None:
        self.name = "api"
        self.declared = declared
        self.enter = not_at_once
        self.clock = clock
        self.permits: list[Permit] = []
        self.back: list[Permit] = []
        self.delay = 0.0  # until a grant arrives

    async def acquire(self, request: Request) -> Permit:
        sent = self.clock.elapsed()
        await asyncio.sleep(self.delay)
        return self._granted(sent)

    def acquire_sync(self, request: Request) -> Permit:
        sent = self.clock.elapsed()
        self.clock.jump(self.delay)
        return self._granted(sent)

    def _granted(self, sent: float) -> Permit:
        number = len(self.permits) + 1
        self.permits.append(Permit(self, {}, Grant(number, number), 0.0, number, sent + LEASE))  # type: ignore[arg-type]  # a line of the test
        return self.permits[-1]

    def owns(self, permit: Permit) -> bool:
        return True

    def follow(self, declared: Declaration) -> None:
        """The first acquire of a limiter declares its limits."""
        self.declared = declared

    def release(self, permit: Permit) -> None:
        permit.held = False
        self.back.append(permit)

    async def arelease(self, permit: Permit) -> bool:
        self.release(permit)
        return True

    take = atake = acquire  # not asked for here
    status = astatus = describe = change = achange = flush = aflush = abandon = settle = release

    # The store of this queue, for a limiter

    def queue(self, name: str, declared: Declaration) -> Leases:
        return self

    # Actions of a test

    def renew(self) -> None:
        """All renewals that were sent this moment have succeeded."""
        for permit in self.permits:
            set_lease_end(permit, self.clock.elapsed() + LEASE)

    def forget(self, *permits: Permit) -> None:
        """Renewals are answered: not held any more."""
        for permit in permits or self.permits:
            set_lease_end(permit, self.clock.elapsed())


def run(leases: Leases, story: Coroutine[Any, Any, Any]) -> Any:
    """Tell it, and see that the task has no request to end left over that it was not sent by
    others.
    """

    async def run_story() -> Any:
        task = asyncio.current_task()
        assert task is not None
        try:
            return await story
        finally:
            assert task.cancelling() == 0
            await asyncio.sleep(0)  # nor one that is still to come

    return virtual.run(run_story(), leases.clock)
