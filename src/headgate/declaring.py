"""The substitutes for the queue of a limiter until its first acquire.

Only the first acquire of a limiter declares its limits, or takes them from the store. After that
the limiter uses its queue directly.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from headgate.changes import Change, Drain, Pause, Resume, Update
from headgate.errors import UnknownLimiterError
from headgate.request import check_units
from headgate.stores.memory.fast_path import not_at_once

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.interfaces import Queue
    from headgate.permit import Permit, Refusal
    from headgate.request import Request
    from headgate.stores.status import Status


class Undeclared:
    """The queue of a limiter until its first acquire or update: that declares the limits.

    The reference to `owner`, the limiter, is weak: with a cycle, a limiter that is never used would
    wait for the garbage collector.
    """

    __slots__ = ("_has_declared", "_own", "_owner", "_queue")

    def __init__(self, owner: Any, queue: Queue, own: Declaration) -> None:
        self._owner: ref[Any] = ref(owner)
        self._queue = queue
        self._own = own
        self._has_declared = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    @property
    def declared(self) -> Declaration:
        present = self._queue.declared
        # Compare first: each new key reads this property, and `foresee` costs a call.
        same = self._has_declared or present.program == self._own.program
        return present if same else self._queue.foresee(self._own)

    def _declare(self) -> Queue:
        if not self._has_declared:
            self._queue.follow(self._own)
            self._step_aside()
        return self._queue

    def _step_aside(self) -> None:
        """The limits are declared: the limiter now uses its queue directly, unless it is closed."""
        self._has_declared = True
        owner = self._owner()
        if owner is not None and owner._queue is self:
            owner._queue = self._queue

    def enter(self) -> bool:
        return self._declare().enter()

    def enter_task(self) -> bool:
        return self._declare().enter_task()

    async def acquire(self, request: Request) -> Permit:
        return await self._declare().acquire(request)

    def acquire_sync(self, request: Request) -> Permit:
        return self._declare().acquire_sync(request)

    def take(self, request: Request) -> Permit | Refusal:
        return self._declare().take(request)

    async def atake(self, request: Request) -> Permit | Refusal:
        return await self._declare().atake(request)

    def status(self, own: Declaration | None = None) -> Status:
        return self._queue.status(self._own)

    async def astatus(self, own: Declaration | None = None) -> Status:
        return await self._queue.astatus(self._own)

    def change(self, change: Change) -> None:
        self._queue.change(self._prepare(change))
        if isinstance(change, Update):
            self._step_aside()

    async def achange(self, change: Change) -> None:
        await self._queue.achange(self._prepare(change))
        if isinstance(change, Update):
            self._step_aside()

    def _prepare(self, change: Change) -> Change:
        """Prepare `change` for a limiter whose own limits are not declared yet.

        An update names them as `former`. For a drain, the queue accepts them if it knows none.
        """
        if isinstance(change, Update):
            former = None if self._has_declared else self._own
            return Update(change.declared, former, change.reason)
        if isinstance(change, Drain):
            self._queue.accept(self._own, known=False)
        return change


class Attached:
    """For a limiter without limits of its own: its first use takes them from the store.

    `whole`: for a key, the queue of the whole limiter. A key uses the whole limiter's limits until
    it has its own.
    """

    def __init__(self, owner: Any, queue: Queue, whole: Queue | None) -> None:
        self.enter = self.enter_task = not_at_once
        self._owner: ref[Any] = ref(owner)
        self._queue = queue
        self._whole = whole
        # The limits of the whole limiter, if the key has taken them over.
        self._of_whole: Declaration | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    @property
    def declared(self) -> Declaration:
        return self._of_whole or self._queue.declared

    async def learn(self) -> Declaration:
        try:
            return await self._queue.learn()
        except UnknownLimiterError:
            if self._whole is None:
                raise
            return self._take_over(await self._whole.learn())

    def learn_sync(self) -> Declaration:
        try:
            return self._queue.learn_sync()
        except UnknownLimiterError:
            if self._whole is None:
                raise
            return self._take_over(self._whole.learn_sync())

    def _take_over(self, limits: Declaration) -> Declaration:
        self._of_whole = limits
        self._queue.accept(limits, known=False)
        return limits

    def _begin(self, learned: Declaration, request: Request) -> Queue:
        """Use the limits that were learned. `request` was made without them, so check it now."""
        if self._of_whole is not None:  # declare them for the key, which has none
            self._queue.follow(self._of_whole)
        else:
            self._queue.accept(learned, known=True)
        owner = self._owner()
        # With on_store_error="open", `learn` may return no limits while the store is away.
        if learned.program and owner is not None and owner._queue is self:
            owner._queue, owner.limits = self._queue, learned.limits
        check_units(learned, self._queue.name, 1, request.units)
        return self._queue

    async def enter_waiting(self, request: Request) -> object:
        return await self._begin(await self.learn(), request).enter_waiting(request)

    def enter_sync(self, request: Request) -> object:
        return self._begin(self.learn_sync(), request).enter_sync(request)

    async def acquire(self, request: Request) -> Permit:
        return await self._begin(await self.learn(), request).acquire(request)

    def acquire_sync(self, request: Request) -> Permit:
        return self._begin(self.learn_sync(), request).acquire_sync(request)

    def take(self, request: Request) -> Permit | Refusal:
        return self._begin(self.learn_sync(), request).take(request)

    async def atake(self, request: Request) -> Permit | Refusal:
        return await self._begin(await self.learn(), request).atake(request)

    def status(self, own: Declaration | None = None) -> Status:
        return self._queue.status(self.learn_sync())

    async def astatus(self, own: Declaration | None = None) -> Status:
        return await self._queue.astatus(await self.learn())

    async def astatus_in_use(self) -> Status:
        """The status for operators, also if only keys of the name are in use.

        Then it shows the pause of the whole limiter, which also holds its keys. On Redis, a key
        that asks for this pause names its own limits. The status may show these, though no process
        has declared them for the whole limiter.
        """
        try:
            return await self.astatus()
        except UnknownLimiterError:
            if self._whole is not None:
                raise
            await self._queue.check_in_use()
            return await self._queue.astatus()

    # Changes of a name: at once, or when the store has shown that the name has limits -------------

    # A pause of the whole limiter holds its keys, too. So a pause or resume needs no limits of the
    # name: it is enough that a key is in use.

    def change(self, change: Change) -> None:
        act = partial(self._queue.change, change)
        self._queue.once_known(change.call, act, self._needs_only_use(change))

    async def achange(self, change: Change) -> None:
        await (self._queue.check_in_use() if self._needs_only_use(change) else self.learn())
        await self._queue.achange(change)

    def _needs_only_use(self, change: Change) -> bool:
        return self._whole is None and isinstance(change, (Pause, Resume))
