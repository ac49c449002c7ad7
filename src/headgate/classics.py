"""The classic primitives, keyword for keyword: what was written for self-limiters runs after a change of the import.

Here live three nouns over the same lines as `Limiter`; each kind has names of its own, so a semaphore and a bucket called alike
do not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec

from headgate.checks import check_count, check_max_sleep, check_name, filling, positive_int, seconds
from headgate.entrance import Entrance
from headgate.gate.rules import Declaration, rules_of
from headgate.limits import DEFAULT_LEASE, Concurrency, Rate
from headgate.names import encoded
from headgate.request import Request, sleep_of
from headgate.stores import MemoryStore, StoreLike, store_of

Numbers = ParamSpec("Numbers")


class Semaphore(Entrance):
    """At most `capacity` at once, first come, first served: `async with Semaphore("api", 5, redis_url=...)` or `with`.

    `name`: instances of one name share one state; `capacity`: permits at once.
    `max_sleep`: seconds a caller is willing to wait; None or 0: as long as it takes. Beyond it MaxSleepExceededError is raised.
    `expiry`: seconds after which the permit of a process that died comes back; a living holder renews it.
    `redis_url`: where the state is shared; without it (and without `store`) it lives in this process.
    `max_position`: refuse at once, with QueueFullError, when more than that many wait before the caller.
    `connection_pool_size`: taken as self-limiters took it, and not needed: one connection serves any number of callers.
    """

    __slots__ = ("capacity", "expiry", "max_position", "max_sleep", "name")

    def __init__(
        self,
        name: str,
        capacity: int,
        max_sleep: float | None = None,
        expiry: float | None = 30,
        redis_url: str | None = None,
        max_position: int | None = None,
        *,
        store: StoreLike = None,
        connection_pool_size: int | None = None,
    ) -> None:
        check_pool_size("Semaphore", connection_pool_size)
        self.name = check_name(name, "Semaphore")
        terms = of_semaphore(capacity, max_sleep, expiry, max_position)
        self.capacity, self.max_sleep, self.expiry, self.max_position = terms.said
        super().__init__(line_of("Semaphore", name, terms.declared, redis_url, store), terms.request)

    def __repr__(self) -> str:
        return f"<Semaphore {self.name!r}: {self._line.describe()}>"


class TokenBucket(Entrance):
    """`refill_amount` tokens every `refill_frequency` seconds into a bucket of `capacity`: each entry takes one, in order.

    `max_sleep`: seconds a caller is willing to wait; None or 0: as long as it takes. The wait is known at once: one beyond
    `max_sleep` raises MaxSleepExceededError immediately and consumes nothing.
    `redis_url`: where the state is shared; without it (and without `store`) it lives in this process.
    `initial_tokens`: what a new bucket holds; full when unsaid.
    `connection_pool_size`: as in `Semaphore`.
    """

    __slots__ = ("capacity", "initial_tokens", "max_sleep", "name", "refill_amount", "refill_frequency")

    def __init__(
        self,
        name: str,
        capacity: int,
        refill_amount: int,
        refill_frequency: float,
        max_sleep: float | None = None,
        redis_url: str | None = None,
        initial_tokens: int | None = None,
        *,
        store: StoreLike = None,
        connection_pool_size: int | None = None,
    ) -> None:
        check_pool_size("TokenBucket", connection_pool_size)
        self.name = check_name(name, "TokenBucket")
        terms = of_bucket(capacity, refill_amount, refill_frequency, max_sleep, initial_tokens)
        self.capacity, self.refill_amount, self.refill_frequency, self.max_sleep, self.initial_tokens = terms.said
        super().__init__(line_of("TokenBucket", name, terms.declared, redis_url, store), terms.request)

    def __repr__(self) -> str:
        return f"<TokenBucket {self.name!r}: {self._line.describe()}>"


class RateLimiter:
    """Requests per second and concurrency together, in this process: `async with RateLimiter(20, 5).throttle(): ...`

    A caller takes its place under `concurrency_limit` first and its token of `rate_limit` per second with it, or neither; both
    are safe against exceptions and cancellation. Each instance has a state of its own; the bucket starts full.
    """

    __slots__ = ("_entrance", "concurrency_limit", "rate_limit")

    def __init__(self, rate_limit: int, concurrency_limit: int) -> None:
        self.rate_limit = positive_int("RateLimiter", "rate_limit", rate_limit)
        self.concurrency_limit = positive_int("RateLimiter", "concurrency_limit", concurrency_limit)
        declared = Declaration(rules_of([Concurrency(concurrency_limit), Rate(rate_limit, per=1)]))
        self._entrance = Entrance(MemoryStore().line("RateLimiter", declared), Request({}))

    def throttle(self) -> Entrance:
        """What to enter around each request, with `async with` or `with`."""
        return self._entrance

    def __repr__(self) -> str:
        return f"<RateLimiter: {self._entrance._line.describe()}>"


# Said once and a thousand times again: code of this kind makes an instance for every call (benchmarks, bucket-classic).


class Terms(NamedTuple):
    """The numbers of an instance, checked; what they declare, and what each entry asks."""

    said: tuple[Any, ...]
    declared: Declaration
    request: Request


def remembered(check: Callable[Numbers, Terms]) -> Callable[Numbers, Terms]:
    """`check`, once for the same numbers of the same types."""
    known: Any = lru_cache(maxsize=1024, typed=True)(check)

    @wraps(check)
    def look(*said: Numbers.args, **named: Numbers.kwargs) -> Terms:
        try:
            terms: Terms = known(*said, **named)
        except TypeError:  # what cannot be looked up is no number: `check` says so
            return check(*said, **named)
        return terms

    return look


@remembered
def of_semaphore(capacity: int, max_sleep: float | None, expiry: float | None, max_position: int | None) -> Terms:
    capacity = positive_int("Semaphore", "capacity", capacity)
    lease = DEFAULT_LEASE if expiry is None else seconds("Semaphore", "expiry", expiry)
    patience = check_max_sleep(max_sleep, "Semaphore")
    position = check_count(max_position, "Semaphore", "max_position")
    declared = Declaration(rules_of([Concurrency(capacity, lease)]))
    request = Request({}, sleep_of(max_sleep, "Semaphore"), None if position is None else position + 1)
    return Terms((capacity, patience, lease, position), declared, request)


@remembered
def of_bucket(capacity: int, amount: int, per: float, max_sleep: float | None, initial: int | None) -> Terms:
    capacity = positive_int("TokenBucket", "capacity", capacity)
    initial = filling("TokenBucket", "initial_tokens", initial, capacity)
    amount = positive_int("TokenBucket", "refill_amount", amount)
    per = seconds("TokenBucket", "refill_frequency", per)
    patience = check_max_sleep(max_sleep, "TokenBucket")
    declared = Declaration(rules_of([Rate(amount, per, capacity, initial, steps=True)]))
    return Terms((capacity, amount, per, patience, initial), declared, Request({}, sleep_of(max_sleep, "TokenBucket")))


def check_pool_size(call: str, size: int | None) -> None:
    if size is not None:
        positive_int(call, "connection_pool_size", size)


def line_of(kind: str, name: str, declared: Declaration, redis_url: str | None, store: StoreLike) -> Any:
    """The line that all instances of one kind and name share."""
    if redis_url is not None and store is not None:
        raise TypeError(f"{kind}({name!r}) got redis_url and store: both say where the state lives, so give one of them.")
    return store_of(redis_url if store is None else store).line(f"{kind}/{encoded(name)}", declared)
