"""The errors of headgate's own that a program may catch.

"Not now", "never", "too late" and "outcome unknown" are different types, because a caller handles
them differently:

    HeadgateError
    +-- MaxSleepExceededError       not now: the wait would exceed max_sleep; has retry_after
    |   +-- QueueFullError          not now: the queue is full; has retry_after and position
    +-- CostExceedsCapacityError    never: the cost is above the capacity (also a ValueError)
    +-- UnknownLimiterError         no process has declared limits for an attached limiter
    +-- LimiterClosedError          closed: this limiter was closed in this process
    +-- LeaseLostError              too late: the lease of a block was lost before the block ended
    +-- StoreError                  outcome unknown: the store gave no answer that makes sense, or
                                    refused the call (alias RedisError)

A bad argument is a ValueError or TypeError. A call in the wrong place is a RuntimeError, for
example `close()` in an event loop. All errors can be pickled and copied.
"""

from __future__ import annotations

from typing import Literal

Reason = Literal["refused", "unresolvable", "timeout", "password", "tls", "lost", "reply", "thread"]


class HeadgateError(Exception):
    """The base of this package's own errors."""


class MaxSleepExceededError(HeadgateError):
    """Not now: the turn would come later than `max_sleep` allows. Nothing was charged, and the
    caller has left the queue.

    It comes at once when the moment of the turn is known, otherwise after `max_sleep`.
    `retry_after`: seconds until the same acquire could succeed, if permits are free then; None when
    only a release can say. Way out: try again after that time, drop the call, or allow a longer
    `max_sleep`.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message, retry_after)  # both: pickle rebuilds an error from its args
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFullError(MaxSleepExceededError):
    """Not now: as many callers wait as `max_waiters` or `max_position` allows. Nothing was charged.

    `position`: the number of live waiters before this one. `retry_after`: seconds until its turn
    behind them; None when only a release can say. Way out: try again after `retry_after` seconds,
    drop the call, or allow a longer queue. Code written for the package self-limiters has one
    handler for "the wait is too long", so this is a kind of MaxSleepExceededError.
    """

    def __init__(self, message: str, retry_after: float | None, position: int = 0) -> None:
        super().__init__(message, retry_after)
        self.position = position


class CostExceedsCapacityError(HeadgateError, ValueError):
    """Never: the acquire costs more than its limit can hold. Nothing was charged.

    Way out: split the call into smaller ones, or raise the limit's capacity.
    """


class UnknownLimiterError(HeadgateError):
    """The store has no limits for the name of a `Limiter.attach`. Nothing was done.

    Way out: check the name and the store, or let a process acquire first that declares limits.
    Redis forgets a name that has been idle for long enough, see "TTLs" in docs/redis.md.
    """


class LimiterClosedError(HeadgateError):
    """Closed: `close()` or `aclose()` has closed the limiter in this process. Nothing was charged.

    Other processes, and other limiters of the same name, go on. Way out: acquire before the close,
    or make another Limiter of this name.
    """


class LeaseLostError(HeadgateError):
    """Too late: the lease of a block's permit was lost before the block ended (only with
    `on_lost="cancel"`).

    A task was cancelled where it awaited; a thread, or a task that did not await, has run to its
    end. Another caller may have held the permit meanwhile. Way out: check what the block has done,
    and do it again. Against longer pauses, give `Concurrency` a longer lease, and hand
    `permit.fence` to the resource.
    """


class StoreError(HeadgateError):
    """Outcome unknown: the store could not be asked in time, refused the call, or gave an answer
    that makes no sense.

    The server may have run the request. headgate does not charge it twice. It gives back a
    permit whose reply was lost, on reconnect or when its lease ends. Way out: check that the server
    is reachable and try again, or choose an `on_store_error`. `reason`:

    - "refused": nothing listens at the address.
    - "unresolvable": the host name has no address.
    - "timeout": the server did not answer in time.
    - "password": the server wants a user or password, or does not accept these.
    - "tls": the TLS handshake failed, for example because of a certificate.
    - "lost": the connection ended, or could not be made for another reason.
    - "reply": the server answered with an error, or its answer makes no sense.
    - "thread": the call came in headgate's own thread, where it would have waited for itself.
      Python's garbage collector also runs finalizers (`__del__`) and weakref callbacks there. Or
      headgate could start no thread of its own.

    `__cause__` is the original exception, if there was one.
    """

    def __init__(self, message: str, reason: Reason = "lost") -> None:
        super().__init__(message, reason)
        self.reason: Reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


RedisError = StoreError  # its name in self-limiters
