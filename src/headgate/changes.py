"""The changes that a limiter makes for all that use its name.

Each is a value, so a wrapper such as FallbackQueue can pass it on unread.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.gate.compile import Declaration


@dataclass(frozen=True, slots=True)
class Change:
    @property
    def call(self) -> str:
        """The method of a limiter that makes it, as messages name it."""
        return f"{type(self).__name__.lower()}()"


@dataclass(frozen=True, slots=True)
class Update(Change):
    declared: Declaration
    # This limiter's own limits, if it has not declared them yet. The update overrules them.
    former: Declaration | None = None
    reason: str = "update"  # or "adopted": a service's answer stated them


@dataclass(frozen=True, slots=True)
class Pause(Change):
    time: int  # microseconds
    reason: str = "caller"  # or "server": a service's answer asked for it
    whole: bool = False  # of a key: the whole limiter with all its keys


@dataclass(frozen=True, slots=True)
class Resume(Change):
    pass


@dataclass(frozen=True, slots=True)
class Reset(Change):
    pass


@dataclass(frozen=True, slots=True)
class Drain(Change):
    unit: str
    left: int
    limit: int = 0  # only limits with this capacity; 0: any
    since: int = 0  # the moment of `left`, by the store's clock; 0: now
