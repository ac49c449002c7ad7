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
        """The method of a limiter that makes it, as messages name it."""
        return f"{type(self).__name__.lower()}()"


class Update(Change):
    """`former`: this limiter's own limits, if it has not declared them yet. The update overrules
    them. `reason`: "update", or "adopted": a service's answer stated the limits.
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
    `whole`: of a key: the whole limiter with all its keys.
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
    """`limit`: only limits with this capacity; 0: any. `since`: the moment of `left`, by the
    store's clock; 0: now.
    """

    __slots__ = ("left", "limit", "since", "unit")

    def __init__(self, unit: str, left: int, limit: int = 0, since: int = 0) -> None:
        self.unit = unit
        self.left = left
        self.limit = limit
        self.since = since
