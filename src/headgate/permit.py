"""The result of an acquire: a permit, or a refusal.

The stores grant permits and take them back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Protocol

from headgate.changes import Change
from headgate.gate.compile import Declaration
from headgate.gate.gate import ONE_EACH, Grant, Units
from headgate.keys import title
from headgate.request import check_settlement
from headgate.values import Value, with_fields

Outcome = type[BaseException] | BaseException | TracebackType | None


class Issuer(Protocol):
    """The queue that granted a permit, as the permit uses it."""

    name: str

    @property
    def declared(self) -> Declaration: ...
    def release(self, permit: Permit) -> None: ...
    async def arelease(self, permit: Permit) -> bool: ...
    def abandon(self, permit: Permit) -> None: ...
    def owns(self, permit: Permit) -> bool:
        """Whether this process acquired it. False in the child of a fork."""

    def settle(self, permit: Permit, extras: Units) -> None: ...
    def change(self, change: Change) -> None: ...


class BlockWatch(Protocol):
    """The object that watches a block for a lost lease, as the permit of the block uses it."""

    def begin(self) -> None: ...
    def begin_sync(self) -> None: ...
    def close(self, error: object) -> None: ...
    def on_lease_change(self) -> None: ...
    def check_lease(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self, error: BaseException | None) -> None: ...
    def raise_loss(self, error: object) -> None: ...


class Lost(Exception):
    """A queue's `leave` raises this if the block has lost its lease. It does not know the error of
    the body. The entrance does, and passes it to `watch`.
    """

    def __init__(self, watch: BlockWatch) -> None:
        super().__init__()
        self.watch = watch


class Permit:
    """The right to make one call, granted by an acquire.

    `fence` is an integer that grows with every grant of the name. Hand it to the protected
    resource, which refuses a smaller one than it has seen. It is 0 for a grant without the store.
    `waited` is how long the acquire waited, in seconds. `held` is true while the permit holds
    capacity of a `Concurrency`. `lost` turns true when its lease ended before the release: another
    caller may hold the capacity then.

    A permit is released once: at the end of its `with` block, or by `release()`. A permit that
    holds capacity and is dropped without either warns (ResourceWarning) and is released.

    `with permit:` and `async with permit:` release it at the end of the block, as
    `with limiter.acquire() as permit:` does.
    """

    __slots__ = (
        "__weakref__",
        "_actual",
        "_lost_at_release",
        "_queue",
        "_reported",
        "certain_until",
        "fence",
        "guard",
        "held",
        "home",
        "key",
        "t",
        "units",
        "waited",
        "watch",
    )

    def __init__(
        self,
        queue: Issuer,
        units: Units,
        grant: Grant,
        waited: float,
        key: Hashable,
        certain_until: float | None,
        home: object = None,
    ) -> None:
        self._queue = queue
        self._actual: Mapping[str, int] = {}
        self.units = units
        self.t = grant.t  # the moment of the grant, by the store's clock
        self.fence = grant.fence
        self.waited = waited
        self.key = key  # the store's own id of the permit; no key of a limiter
        self.home = home  # the store's object that renews this permit
        # Until this moment, on the monotonic clock, the lease certainly holds; infinity: it never
        # ends. The argument is None if there is no lease. Such a permit holds nothing, unless
        # `start_holding` follows, as in memory.
        self.certain_until = inf if certain_until is None else certain_until
        self.held = certain_until is not None
        self.watch: BlockWatch | None = None  # over the block that holds it: see lease_watch.py
        # Makes the watch when a block begins. None: no block of this permit is watched.
        self.guard: Callable[[Permit], BlockWatch] | None = None
        self._lost_at_release: bool | None = None  # None: it was not released yet
        if self.held:
            self.__class__ = Held
        self._reported = False  # whether `report_loss` has reported the loss of its lease

    @property
    def lost(self) -> bool:
        """Whether the lease ended before the release. Once true it stays true; the release fixes
        its value.

        True, too, when the process cannot know because the store did not confirm a renewal in time.
        """
        if self._lost_at_release is not None:
            return self._lost_at_release
        return self.held and monotonic() >= self.certain_until

    def __enter__(self) -> Permit:
        self._check_unreleased()
        if self.guard is not None:
            self.guard(self).begin_sync()
        return self

    def __exit__(self, *outcome: Outcome) -> None:
        self.leave(outcome[1])

    async def __aenter__(self) -> Permit:
        self._check_unreleased()
        if self.guard is not None:
            self.guard(self).begin()
        return self

    async def __aexit__(self, *outcome: Outcome) -> None:
        self.leave(outcome[1])

    def _check_unreleased(self) -> None:
        if self._lost_at_release is not None:
            raise RuntimeError(
                f"{self!r} was released before, and a block would hold nothing: acquire another "
                "permit."
            )
        if self.watch is not None:
            raise RuntimeError(
                f"{self!r} is held by a block already: acquire another permit for this block."
            )

    def leave(self, error: object) -> None:
        """End the block. `error`: the exception that ended it, or None."""
        if self.watch is None:
            self.release()
        else:
            self.watch.close(error)

    def release(self) -> None:
        """Give the capacity back. Never blocks; any task or thread may call it, and a second call
        does nothing.

        On Redis it is sent in the background; `arelease` waits for the server.
        """
        if self._lost_at_release is None:
            self._lost_at_release = self.lost
        self._queue.release(self)
        if not self.held:
            # The queue has cleared `held`, so this permit needs no finalizer. Python would swallow
            # an exception that a signal handler raises in one.
            self.__class__ = Permit

    async def arelease(self) -> bool:
        """`release`, awaited until the store knows. Returns False when the permit was not held any
        more.

        Raises StoreError when the store cannot be asked. The store gets the release when it is
        back. If the collector closes the coroutine outside an event loop, the release is sent
        without a wait.
        """
        if self._lost_at_release is None:
            self._lost_at_release = self.lost
        try:
            return await self._queue.arelease(self)
        finally:
            if not self.held:
                self.__class__ = Permit  # as in `release`

    def settle(self, **actual: int) -> None:
        """Report the real use of the call, as in `settle(tokens=usage.total_tokens)`. Never blocks.

        The unused part of the acquire's cost goes back to the budget of that unit. Use beyond it is
        charged, as a debt if need be: the next callers wait it out. `actual`: whole numbers from 0,
        for each unit the total. You may call it before or after the release, and again: the last
        call counts. If a later call lowers the total, a Rate or a Window gives back at most the
        difference. Part of it may come back only as time passes. In the child of a fork, a permit
        of the parent charges further use, and gives nothing back: the parent may do so.

        Raises TypeError or ValueError for anything but whole numbers of units that a Rate, Window
        or Quota counts.
        """
        units = check_settlement(self._queue.declared, self._queue.name, actual)
        self._queue.settle(self, note_totals(self, units, self._queue.owns(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: it is held once, by this process; release it "
            "here, and send its fence."
        )

    def __bool__(self) -> Literal[True]:
        """True, as a `Refusal` is false."""
        return True

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self.held else "passed"
        waited = f"waited {self.waited:.3f} s"
        return f"<Permit of {title(self._queue.name)}: {state}, {waited}, fence {self.fence}>"


class Held(Permit):
    """A permit that holds capacity, until its release: dropped before that, it gives the capacity
    back.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if self.held and not self.lost:
            try:
                warnings.warn(
                    f"{self!r} was dropped without a release; it goes back now",
                    ResourceWarning,
                    2,
                    self,
                )
            finally:  # a warning may be an error
                self._queue.abandon(self)


# For the queues and the watch of a block -------------------------------------------------------


def start_holding(permit: Permit) -> None:
    """From now on the permit holds capacity, and goes back if it is dropped."""
    permit.__class__ = Held
    permit.held = True


def set_lease_end(permit: Permit, end: float) -> None:
    """The lease is certain until `end`, on the monotonic clock. If `end` is now, the lease is lost.
    A lost lease stays lost.
    """
    if not permit.lost:
        permit.certain_until = end
    watch = permit.watch  # another thread may end the block meanwhile
    if watch is not None:
        watch.on_lease_change()


def report_loss(permit: Permit) -> bool:
    """Whether to log the loss of the lease: true once, in the first call after the loss."""
    is_news = permit.lost and not permit._reported
    permit._reported = permit._reported or is_news
    return is_news


def note_totals(permit: Permit, units: Units, owned: bool) -> Units:
    """Note the totals of a settlement. Returns by how much they differ from those before."""
    while True:
        before = permit._actual
        # An acquire costs one of each unit in ONE_EACH that it does not name.
        known = {**ONE_EACH, **permit.units, **before}
        if not owned:  # in a fork's child: the parent may give the same back
            units = {unit: max(amount, known.get(unit, 0)) for unit, amount in units.items()}
        extras = {unit: amount - known.get(unit, 0) for unit, amount in units.items()}
        after = {**before, **units}
        # If another settlement came meanwhile, compare with its totals. There is no call between
        # this look and the assignment, so no other thread and no signal handler runs there.
        if permit._actual is before:
            permit._actual = after
            return {unit: extra for unit, extra in extras.items() if extra}


def redirect(permit: Permit, around: Callable[[Issuer], Issuer]) -> None:
    """Put `around` between the permit and the queue that granted it."""
    permit._queue = around(permit._queue)


@with_fields
class Refusal(Value):
    """The result of `try_acquire` in place of a permit: false in a condition. Nothing was charged.

    `retry_after` is the number of seconds until the same acquire could succeed, if permits are free
    then; None when only a release can say.
    """

    __slots__ = ("retry_after",)
    retry_after: float | None

    def __init__(self, retry_after: float | None) -> None:
        object.__setattr__(self, "retry_after", retry_after)  # faster than `_set`

    def __bool__(self) -> Literal[False]:
        return False
