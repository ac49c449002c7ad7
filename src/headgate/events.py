"""The events of limiters, for the hooks of `headgate.telemetry`. Only programs with hooks import
them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Event:
    """`limiter`: the name of a limiter. `key`: of a keyed one, or None.

    A classic's name has its kind before it: "Semaphore/api".
    """

    limiter: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Granted(Event):
    """An acquire that had to wait was granted, after `waited` seconds.

    An acquire that passes at once is only counted. `local`: the store was away, and a share of the
    limits granted it (on_store_error="local"). `context` is that of the caller. `at` is the moment,
    in seconds since 1970.
    """

    waited: float
    cost: dict[str, int]  # the units that the acquire named
    context: contextvars.Context = field(repr=False, compare=False)
    local: bool = False
    at: float = field(default_factory=time, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """An acquire ended without a permit, after `waited` seconds in the queue.

    `reason`: "not_now" (of a try), "too_long" (max_sleep), "queue_full", "never" (the cost exceeds
    the capacity), "cancelled" or "store_error". `context` and `at` are as in `Granted`.
    """

    reason: str
    waited: float
    context: contextvars.Context = field(
        default_factory=contextvars.copy_context, repr=False, compare=False
    )
    at: float = field(default_factory=time, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A permit was given back, after `held` seconds. Only limiters that are timed have it."""

    held: float


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """A holder's lease ended before its release."""

    fence: int


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """This process paused the limiter, or learned that another one did.

    `reason`: "caller" (this program), "server" (a service's answer) or "fleet" (another process).
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """This process ended a pause."""


@dataclass(frozen=True, slots=True)
class LimitsChanged(Event):
    """Other limits hold now.

    `limits`: in words. `reason`: "update", "adopted" (a service's answer) or "fleet" (another
    process).
    """

    limits: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResponseActedOn(Event):
    """A service's answer changed a limiter.

    `status`: of HTTP. `verdict`: the reading of the answer. `action`: "pause", "drain" or "adopt".
    """

    status: int
    verdict: str
    action: str


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store cannot be asked."""

    store: str
    cause: str


@dataclass(frozen=True, slots=True)
class StoreBack:
    """The store answers again, after `away` seconds."""

    store: str
    away: float


@dataclass(frozen=True, slots=True)
class StoreCalled:
    """A call to a server of the store was answered after `seconds`, or failed with `error`."""

    server: str
    seconds: float
    error: str


AnyEvent: TypeAlias = Event | StoreAway | StoreBack | StoreCalled
Hook: TypeAlias = Callable[[AnyEvent], object]
