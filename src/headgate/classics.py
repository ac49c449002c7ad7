"""The classic primitives, keyword for keyword: what was written for self-limiters runs after a change of the import.

Here live three nouns over the same lines as `Limiter`; each kind has names of its own, so a semaphore and a bucket called alike
do not meet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headgate.checks import check_count, check_max_sleep, check_name, filling, positive_int, seconds
from headgate.entrance import Entrance
from headgate.gate.rules import Declaration, rules_of
from headgate.limits import DEFAULT_LEASE, Concurrency, Rate
from headgate.names import encoded
from headgate.request import Request, sleep_of
from headgate.stores import MemoryStore, StoreLike, store_of


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
        self.name, self.capacity = check_name(name, "Semaphore"), positive_int("Semaphore", "capacity", capacity)
        self.expiry = DEFAULT_LEASE if expiry is None else seconds("Semaphore", "expiry", expiry)
        self.max_sleep = check_max_sleep(max_sleep, "Semaphore")
        self.max_position = check_count(max_position, "Semaphore", "max_position")
        most = None if self.max_position is None else self.max_position + 1
        declared = of_semaphore(self.capacity, self.expiry)
        super().__init__(*shared("Semaphore", name, declared, redis_url, store, max_sleep, most))

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
        self.name, self.capacity = check_name(name, "TokenBucket"), positive_int("TokenBucket", "capacity", capacity)
        self.initial_tokens = filling("TokenBucket", "initial_tokens", initial_tokens, self.capacity)
        self.refill_amount = positive_int("TokenBucket", "refill_amount", refill_amount)
        self.refill_frequency = seconds("TokenBucket", "refill_frequency", refill_frequency)
        self.max_sleep = check_max_sleep(max_sleep, "TokenBucket")
        declared = of_bucket(self.capacity, self.refill_amount, self.refill_frequency, self.initial_tokens)
        super().__init__(*shared("TokenBucket", name, declared, redis_url, store, max_sleep, None))

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


# Declared once and a thousand times again: code of this kind makes an instance for every call (benchmarks, bucket-classic).


@lru_cache(maxsize=1024)
def of_semaphore(capacity: int, lease: float) -> Declaration:
    return Declaration(rules_of([Concurrency(capacity, lease)]))


@lru_cache(maxsize=1024)
def of_bucket(capacity: int, amount: int, per: float, initial: int | None) -> Declaration:
    return Declaration(rules_of([Rate(amount, per, capacity, initial, steps=True)]))


def check_pool_size(call: str, size: int | None) -> None:
    if size is not None:
        positive_int(call, "connection_pool_size", size)


def shared(
    kind: str, name: str, declared: Declaration, redis_url: str | None, store: StoreLike, max_sleep: float | None, most: int | None
) -> tuple[Any, Request]:
    """The line that all instances of one kind and name share, and what each entry asks of it."""
    if redis_url is not None and store is not None:
        raise TypeError(f"{kind}({name!r}) got redis_url and store: both say where the state lives, so give one of them.")
    where = store_of(redis_url if store is None else store)
    line = where.line(f"{kind}/{encoded(name)}", declared)
    return line, Request({}, sleep_of(max_sleep, kind), most)
