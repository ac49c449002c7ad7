"""Every error that headgate raises of its own.

Here live the types and what each one means for the caller; no logic, and no import of anything else of the
package. "Not now", "never", "too late" and "nobody knows" are different types, because a caller has to do different
things about them:

    HeadgateError
    +-- MaxSleepExceededError       not now: the wait would exceed the caller's max_sleep; has retry_after
    |   +-- QueueFullError          not now: too many wait before this caller; has retry_after and position
    +-- CostExceedsCapacityError    never: the cost is more than the limit can ever hold (also a ValueError)
    +-- UnknownLimiterError         no process has declared limits for this name: an attached limiter has none
    +-- LimiterClosedError          no more: this limiter was closed in this process
    +-- LeaseLostError              too late: the body of a block ran on without its permit
    +-- StoreError                  unknown: the store did not answer, or not sensibly (alias RedisError)

Bad arguments are plain ValueError and TypeError. All errors can be pickled and copied: they cross process
boundaries.
"""

from __future__ import annotations

from typing import Literal

Reason = Literal["refused", "unresolvable", "timeout", "password", "tls", "lost", "reply", "thread"]


class HeadgateError(Exception):
    """The base of all errors of this package: catch it to catch every one of them."""


class MaxSleepExceededError(HeadgateError):
    """Not now: the turn would come later than `max_sleep` allows. Nothing was charged and no place was kept.

    `retry_after` is the number of seconds until the same acquire could succeed; None when only a
    release can say. Way out: try again after that long, drop the call, or allow a longer `max_sleep`
    (None waits for as long as it takes).
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message, retry_after)  # both: pickle and copy rebuild an error from its args
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFullError(MaxSleepExceededError):
    """Not now: as many callers wait already as `max_waiters` or `max_position` allows. Nothing was charged.

    `position` is how many live waiters stood before this one. `retry_after` is how many seconds its
    turn behind them would be away; None when only a release can say.

    Way out: try again after `retry_after` seconds, shed the call, or allow a longer queue. It is a kind of
    MaxSleepExceededError because a full queue is a wait too long by another measure, and because code written
    for self_limiters has one handler for "I would have to wait too long", which must go on working.
    """

    def __init__(self, message: str, retry_after: float | None, position: int = 0) -> None:
        super().__init__(message, retry_after)
        self.position = position


class CostExceedsCapacityError(HeadgateError, ValueError):
    """Never: the acquire costs more than its limit can hold at any time, so no wait would help.

    Nothing was charged. Way out: split the call into smaller ones, or raise the limit's capacity.
    """


class UnknownLimiterError(HeadgateError):
    """The store has no limits for this name, and a limiter of `Limiter.attach` has none of its own. Nothing was done.

    Way out: check the name and the store; let a process acquire first that declares limits, `Limiter(name, "100/minute", ...)`. A
    store forgets a name that has been idle for long enough.
    """


class LimiterClosedError(HeadgateError):
    """No more: the limiter was closed in this process, by `close()` or `aclose()`. Nothing was charged and no place was kept.

    A limiter that is closed refuses each new acquire of it and of its keys. With `refuse_waiters=True` it
    also refuses those that wait. Other processes, and other limiters of the same name, go on.

    Way out: acquire before the close, or make another Limiter of this name.
    """


class LeaseLostError(HeadgateError):
    """Too late: a block held a permit, and its lease was lost before the block was left (`on_lost="cancel"`).

    A task was cancelled where it awaited; a thread, or a task that did not await, has run to its end. Somebody else may have held
    the permit meanwhile. Way out: check what the block has done, and do it again; where processes or stores pause for longer than
    the lease, give `Concurrency` a longer one, and hand `permit.fence` to the resource.
    """


class StoreError(HeadgateError):
    """Unknown: the store could not be reached in time, or gave an answer that makes no sense.

    Whether the request was carried out is not known. headgate settles it by itself: a request that is sent
    again is not charged twice, and a permit that nobody heard of ends with its lease. Way out: see that the
    server is up and reachable, and try again.

    `reason` says what went wrong:

    - "refused": nothing listens at the address.
    - "unresolvable": the host name has no address.
    - "timeout": the server did not answer in time.
    - "password": it wants a user or password, or does not accept the one that it was given.
    - "tls": TLS could not be agreed on, or a certificate was not accepted.
    - "lost": the connection ended, or could not be made for any other reason.
    - "reply": the server answered with an error, or not sensibly.
    - "thread": the call came in headgate's own thread, where it would have waited for itself. The collector runs
      finalizers (`__del__`) and weakref callbacks there, too.

    `__cause__` is the exception that it came from, where there was one.
    """

    def __init__(self, message: str, reason: Reason = "lost") -> None:
        super().__init__(message, reason)  # both: pickle and copy rebuild an error from its args
        self.reason: Reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


RedisError = StoreError  # the name by which code written for self_limiters catches it
