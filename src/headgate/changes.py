"""The changes that a limiter makes for all that use its name.

Each is a value, so a wrapper such as FallbackQueue can pass it on unread. They are no dataclasses,
because those would take a tenth of the package's import time.
"""

from __future__ import annotations

from headgate.gate.compile import Declaration


class Change:
    __slots__ = ()

    @property
    def call(self) -> str:
        """The limiter's method that makes this change, as messages name it."""
        return f"{type(self).__name__.lower()}()"


class Update(Change):
    """`former`: the limiter's own limits, if it has not declared them yet. If another limiter
    declares the same limits later, the update still overrules them. None: they were declared.
    `reason`: "update", or "adopted": a service's answer stated the limits.
    """

    __slots__ = ("declared", "former", "reason")

    def __init__(
        self, declared: Declaration, former: Declaration | None = None, reason: str = "update"
    ) -> None:
        self.declared = declared
        self.former = former
        self.reason = reason


class Pause(Change):
    """`time`: in microseconds. `reason`: "caller", or "server": a service's answer asked for it.
    `whole`: if the queue is that of a key, pause the whole limiter with all its keys instead.
    """

    __slots__ = ("reason", "time", "whole")

    def __init__(self, time: int, reason: str = "caller", whole: bool = False) -> None:
        self.time = time
        self.reason = reason
        self.whole = whole


class Resume(Change):
    __slots__ = ()


class Reset(Change):
    __slots__ = ()


class Drain(Change):
    """The service said that the budget had `left` at `since`, by the store's clock; 0: now.

    `limit`: change only limits of `unit` with this capacity; 0: all limits of `unit`.
    """

    __slots__ = ("left", "limit", "since", "unit")

    def __init__(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        self.unit = unit
        self.left = left
        self.limit = limit
        self.since = since
