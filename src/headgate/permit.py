"""What an acquire returns: a permit, or a refusal.

Here lives what the caller holds in the hand; how it is granted and given back is the store's to know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from headgate.gate.gate import ONE_EACH, Grant, Units
from headgate.request import check_settlement

if TYPE_CHECKING:
    from headgate.line import Back
    from headgate.watch import Watch


class Permit:
    """The right to make one call, granted by an acquire.

    `fence` is an integer that grows with every grant of the name: hand it to the resource that is protected, which refuses
    what comes with a smaller one. `waited` is how long the acquire took, in seconds. `lost` turns true when the lease of a
    held permit ended before its release: somebody else may hold the capacity now.

    A permit is released once: by leaving its `with` block, or by `release()`. A permit that holds capacity and is dropped
    without either warns (ResourceWarning) and goes back.
    """

    __slots__ = ("__weakref__", "_actual", "_line", "believed", "fence", "held", "home", "key", "t", "units", "waited", "watch")

    def __init__(
        self, line: Back, units: Units, grant: Grant, waited: float, key: Hashable, believed: float | None, home: object = None
    ) -> None:
        self._line = line
        self._actual: Mapping[str, int] = {}
        self.units = units
        self.t = grant.t
        self.fence = grant.fence
        self.waited = waited
        self.key = key
        self.home = home  # where the store keeps what renews this permit
        self.held = believed is not None
        self.believed = inf if believed is None else believed  # until when the lease is certain, on the monotonic clock
        self.watch: Watch | None = None  # over the body that holds it: see watch.py

    @property
    def lost(self) -> bool:
        """Whether the lease ended before the release, as far as this process can know: it errs on the side of lost."""
        return self.held and monotonic() >= self.believed

    def renewed(self, believed: float) -> None:
        """For the store: the lease is certain until `believed`, on the monotonic clock; until now: it is lost, and stays lost."""
        if not self.lost:
            self.believed = believed
        if self.watch is not None:
            self.watch.look()

    def go_by(self, around: Callable[[Back], Back]) -> None:
        """For what is put around the line that granted it: from now on what is done with the permit goes by that."""
        self._line = around(self._line)

    def release(self) -> None:
        """Give back what is held. Never blocks, from any task or thread; a second time is harmless."""
        self._line.release(self)

    async def arelease(self) -> bool:
        """Give back what is held and wait until the store knows. False when it was not held any more."""
        return await self._line.arelease(self)

    def settle(self, **actual: int) -> None:
        """Say what the call really took, as in `settle(tokens=usage.total_tokens)`. Never blocks.

        What was asked for and not used goes back to the budget of that unit; what was used beyond it is charged, as a debt if
        need be. Whole numbers from 0. It may be said before or after the release, and again: the last word counts.

        Raises TypeError or ValueError for anything but whole numbers of units that a limit counts.
        """
        check_settlement(self._line.declared, unquote(self._line.name), actual)
        known = {**ONE_EACH, **self.units, **self._actual}
        extras = {unit: amount - known.get(unit, 0) for unit, amount in actual.items()}
        self._actual = {**self._actual, **actual}
        self._line.settle(self, {unit: extra for unit, extra in extras.items() if extra})

    def __bool__(self) -> Literal[True]:
        """True, as a `Refusal` is false."""
        return True

    def __del__(self) -> None:
        if self.held and not self.lost:
            try:
                warnings.warn(f"{self!r} was dropped without a release; it goes back now", ResourceWarning, 2, self)
            finally:  # a warning may be an error
                self._line.abandon(self)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self.held else "passed"
        return f"<Permit of {unquote(self._line.name)!r}: {state}, waited {self.waited:.3f} s, fence {self.fence}>"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What `try_acquire` returns instead of a permit: false in a condition.

    `retry_after` is how many seconds until the same acquire could succeed; 0.0 when only a permit that somebody holds stands in
    the way, which may come back at any time.
    """

    retry_after: float

    def __bool__(self) -> Literal[False]:
        return False
