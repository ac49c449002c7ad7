"""The status of a limiter, the same for every store."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, cast

from headgate.gate.concurrency import NEVER
from headgate.gate.gate import Gate
from headgate.keys import unquoted
from headgate.limits import Limit
from headgate.validation import duration
from headgate.values import Value, with_fields

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Rule
    from headgate.stores.status_text import Use

KINDS = {"bucket": "Rate", "window": "Window", "quota": "Quota", "slots": "Concurrency"}


@with_fields
class LimitStatus(Value):
    """One limit: of `capacity` units, `used` are in use and `left` are free (below zero: a debt).

    `limit` is the `Concurrency`, `Rate`, `Window` or `Quota` that holds in the store. It is the one
    that this process has written, or one that means the same. `==` does not compare it.
    """

    __slots__ = ("capacity", "kind", "left", "limit", "unit", "used")
    kind: str
    unit: str
    capacity: int
    used: int
    left: int
    limit: Limit

    def __init__(
        self,
        kind: str,
        unit: str,
        capacity: int,
        used: int,
        left: int,
        # The default keeps code working that calls LimitStatus with five arguments.
        limit: Limit = cast(Limit, None),  # noqa: B008 - `cast` returns None as it is
    ) -> None:
        self._set(kind=kind, unit=unit, capacity=capacity, used=used, left=left, limit=limit)

    def _compared(self) -> tuple[Any, ...]:
        return self.kind, self.unit, self.capacity, self.used, self.left


@with_fields
class QueueLength(Value):
    """How many acquires wait for one key of a limiter. `key` None: for the limiter itself."""

    __slots__ = ("key", "name", "waiting")
    name: str
    key: str | None
    waiting: int

    def __init__(self, name: str, key: str | None, waiting: int) -> None:
        self._set(name=name, key=key, waiting=waiting)


def longest(queues: Iterable[QueueLength]) -> list[QueueLength]:
    """The ten queues with the most waiters, without those that have none."""
    waiting = [queue for queue in queues if queue.waiting]
    return sorted(waiting, key=lambda queue: (-queue.waiting, queue.name, queue.key or ""))[:10]


@with_fields
class Status(Value):
    """A limiter at one moment: its limits, how many wait, and `retry_after`.

    `retry_after` is the number of seconds until an acquire that comes now could pass, if permits
    are free then. It is 0.0 when it could pass at once, and None when only a release can say.
    `paused` is for how many seconds more the limiter is paused; 0.0: it is not.

    `print(status)` shows a few lines of ASCII with a bar for each limit, and a notebook a table.
    """

    __slots__ = ("limits", "name", "paused", "retry_after", "waiting")
    name: str
    limits: tuple[LimitStatus, ...]
    waiting: int
    retry_after: float | None
    paused: float

    def __init__(
        self,
        name: str,
        limits: tuple[LimitStatus, ...],
        waiting: int,
        retry_after: float | None,
        paused: float = 0.0,
    ) -> None:
        self._set(name=name, limits=limits, waiting=waiting, retry_after=retry_after, paused=paused)

    def line(self) -> str:
        """The whole status in one line, for a repr or a log."""
        limits = ", ".join(
            f"{limit.used} of {limit.capacity} {limit.unit} used ({limit.kind})"
            for limit in self.limits
        )
        line = f"{limits or 'no limits declared yet'}, {self.waiting} waiting"
        return f"{line}, paused for {duration(self.paused)}" if self.paused else line

    def __str__(self) -> str:
        from headgate.stores.status_text import as_text  # few programs print a status

        return as_text(self.name, *self._parts())

    def _repr_html_(self) -> str:
        from headgate.stores.status_text import as_html  # as above

        return as_html(self.name, *self._parts())

    def _parts(self) -> tuple[list[Use], list[str]]:
        from headgate.stores.status_text import Use, outlook  # as above

        uses = [Use(limit.kind, limit.unit, limit.used, limit.capacity) for limit in self.limits]
        return uses, outlook(self.waiting, self.retry_after, self.paused)


def unused(name: str, declared: Declaration, paused: int = 0) -> Status:
    """The status of a name without limits in the store, as of a new limiter with `declared`."""
    gate = Gate(declared.rules(), 0)
    if paused:
        gate.pause(0, paused)
    left = [rule.left(0) for rule in gate.rules.all]
    return status_of(name, declared, gate.rules.all, left, 0, gate.entry_at(), paused)


def status_of(
    name: str,
    declared: Declaration,
    rules: Iterable[Rule],
    left: Iterable[int],
    waiting: int,
    delay: int,
    paused: int,
) -> Status:
    """From the numbers of a gate: `delay` and `paused` in microseconds."""
    limits = tuple(
        LimitStatus(
            KINDS[rule.text.partition(" ")[0]],
            rule.unit,
            rule.capacity,
            rule.capacity - rest,
            rest,
            limit,
        )
        for limit, rule, rest in zip(declared.limits, rules, left, strict=True)
    )
    # The delay until NEVER is less than NEVER: see `seconds_of` in waiting.py.
    retry_after = None if delay >= NEVER // 2 else max(0, delay) / 1_000_000
    return Status(unquoted(name), limits, waiting, retry_after, paused / 1_000_000)


def snapshot(gate: Gate) -> Gate:
    """A copy to read from, because reading may change the state of a gate. `gate` may be in the
    middle of a step.
    """
    copied = copy(gate)
    copied.rules = deepcopy(gate.rules)
    return copied
