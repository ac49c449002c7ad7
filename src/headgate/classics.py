"""The classes of self-limiters: code that was written for them runs after a change of the import.

They use the same queues as `Limiter`. Each kind has names of its own, so a semaphore and a bucket
of one name share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from headgate.entrance import Entrance, made_from
from headgate.gate.compile import Declaration, declaration
from headgate.keys import encoded
from headgate.limits import DEFAULT_LEASE, Concurrency, Rate
from headgate.pickles import attributes, remade
from headgate.request import Request, sleep_of
from headgate.stores.memory.store import MemoryStore
from headgate.stores.registry import StoreLike, check_portable, store_of
from headgate.validation import (
    check_count,
    check_initial,
    check_max_sleep,
    check_name,
    positive_int,
    seconds,
)

Check = TypeVar("Check", bound=Callable[..., Any])


class Classic(Entrance):
    """A semaphore or a bucket with a name."""

    __slots__ = ("_name", "_terms", "_where")
    _kind: str
    _terms: SemaphoreTerms | BucketTerms

    def _check_name(self, name: str, pool_size: int | None) -> None:
        """Check both, and keep the name."""
        if pool_size is not None:
            positive_int(self._kind, "connection_pool_size", pool_size)
        self._name = check_name(name, self._kind)

    def _share(self, redis_url: str | None, store: StoreLike) -> None:
        """Use the queue that all instances of this kind and name share."""
        if redis_url is not None and store is not None:
            raise TypeError(
                f"{self._kind}({self._name!r}) got redis_url and store, which mean the same: give "
                "one of them."
            )
        self._where = redis_url if store is None else store
        declared = self._terms.declared
        queue: Any = store_of(self._where).queue(f"{self._kind}/{encoded(self._name)}", declared)
        super().__init__(queue, self._terms.request, declared)

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._name

    @property
    def capacity(self) -> int:
        """How many permits there are, or how many tokens the bucket can hold."""
        return self._terms.capacity

    @property
    def max_sleep(self) -> float | None:
        """How many seconds a caller is willing to wait, as given.

        None or 0: as long as it takes.
        """
        return self._terms.max_sleep

    def _reduced(self, base: type[Classic], *numbers: Any, **options: Any) -> tuple[Any, ...]:
        """The result of `__reduce__`. `numbers`, `options`: arguments of `base` after the name."""
        check_portable(f"{self._kind}({self._name!r})", self._where)
        kind, options["store"] = made_from(self), self._where
        return remade, (kind, base, (self._name, *numbers), options), attributes(self, kind, base)

    def __repr__(self) -> str:
        return f"<{self._kind} {self._name!r}: {self._queue.describe()}>"


class Semaphore(Classic):
    """At most `capacity` at once, first come, first served: `async with Semaphore("api", 5,
    redis_url=...)` or `with`.

    `name`: instances of one name share one state. `capacity`: permits at once.
    `max_sleep`: seconds that a caller is willing to wait; None or 0: as long as it takes. After
    that MaxSleepExceededError.
    `expiry`: seconds until the permit of a dead process comes back; None: 30. A living holder
    renews it.
    `redis_url`: where the state is shared; None, and no `store`: in this process.
    `store`: instead of `redis_url`, any store of a `Limiter`.
    `connection_pool_size`: without effect: one connection serves any number of callers.
    `max_position`: QueueFullError at once, when more than that many wait before the caller.

    The order of the arguments is that of self-limiters 0.4, and the attributes are read-only as
    there. Raises ValueError or TypeError for bad arguments, and StoreError (RedisError) when the
    store cannot be asked.
    """

    __slots__ = ()
    _kind = "Semaphore"
    _terms: SemaphoreTerms

    def __init__(
        self,
        name: str,
        capacity: int,
        max_sleep: float | None = None,
        expiry: float | None = 30,
        redis_url: str | None = None,
        connection_pool_size: int | None = None,
        *,
        max_position: int | None = None,
        store: StoreLike = None,
    ) -> None:
        self._check_name(name, connection_pool_size)
        self._terms = check_semaphore(capacity, max_sleep, expiry, max_position)
        self._share(redis_url, store)

    @property
    def expiry(self) -> float:
        """The lease of a permit, in seconds."""
        return self._terms.expiry

    @property
    def max_position(self) -> int | None:
        """How many may wait before a caller. None: any number."""
        return self._terms.max_position

    def __reduce__(self) -> tuple[Any, ...]:
        terms = self._terms
        options = {"expiry": terms.expiry, "max_position": terms.max_position}
        return self._reduced(Semaphore, terms.capacity, terms.max_sleep, **options)


class TokenBucket(Classic):
    """`refill_amount` tokens every `refill_frequency` seconds into a bucket of `capacity`: each
    entry takes one, in order.

    `max_sleep`: seconds that a caller is willing to wait; None or 0: as long as it takes. A longer
    wait raises MaxSleepExceededError at once and consumes nothing.
    `initial_tokens`: how many tokens a new bucket holds; None: it is full.
    `redis_url`, `store`, `connection_pool_size`, the order of the arguments, the errors and the
    read-only attributes: as in `Semaphore`.
    """

    __slots__ = ()
    _kind = "TokenBucket"
    _terms: BucketTerms

    def __init__(
        self,
        name: str,
        capacity: int,
        refill_frequency: float,
        refill_amount: int,
        redis_url: str | None = None,
        max_sleep: float | None = None,
        connection_pool_size: int | None = None,
        *,
        initial_tokens: int | None = None,
        store: StoreLike = None,
    ) -> None:
        self._check_name(name, connection_pool_size)
        self._terms = check_bucket(
            capacity, refill_frequency, refill_amount, max_sleep, initial_tokens
        )
        self._share(redis_url, store)

    @property
    def refill_frequency(self) -> float:
        """How many seconds there are between two refills."""
        return self._terms.refill_frequency

    @property
    def refill_amount(self) -> int:
        """How many tokens each refill brings."""
        return self._terms.refill_amount

    @property
    def initial_tokens(self) -> int | None:
        """How many tokens a new bucket holds. None: it is full."""
        return self._terms.initial_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        terms = self._terms
        return self._reduced(
            TokenBucket,
            terms.capacity,
            terms.refill_frequency,
            terms.refill_amount,
            max_sleep=terms.max_sleep,
            initial_tokens=terms.initial_tokens,
        )


class RateLimiter:
    """Requests per second and concurrency together, in this process: `async with
    limiter.throttle(): ...`

    A call takes one of `concurrency_limit` permits and one token of a bucket of `rate_limit` a
    second, or neither. A call that fails or is cancelled gives its permit back. A call that is
    cancelled while it waits has taken neither. Each instance has a state of its own. Its bucket
    starts full: in the first second up to twice `rate_limit` calls can pass.
    """

    __slots__ = ("_entrance", "concurrency_limit", "rate_limit")

    def __init__(self, rate_limit: int, concurrency_limit: int) -> None:
        self.rate_limit = positive_int("RateLimiter", "rate_limit", rate_limit)
        self.concurrency_limit = positive_int("RateLimiter", "concurrency_limit", concurrency_limit)
        declared = declaration([Concurrency(concurrency_limit), Rate(rate_limit, per=1)])
        self._entrance = Entrance(
            MemoryStore().queue("RateLimiter/", declared), Request({}), declared
        )

    def __copy__(self) -> RateLimiter:
        return self

    def __deepcopy__(self, memo: object) -> RateLimiter:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RateLimiter, (self.rate_limit, self.concurrency_limit)

    def throttle(self) -> Entrance:
        """Enter this around each request, with `async with` or `with`."""
        return self._entrance

    def __repr__(self) -> str:
        return f"<RateLimiter: {self._entrance._queue.describe()}>"


# Code for self-limiters makes an instance for every call, so its checks are cached (bucket-classic
# in the benchmarks).


class SemaphoreTerms(NamedTuple):
    """The checked arguments of a Semaphore, their limits, and the request of each entry."""

    capacity: int
    max_sleep: float | None
    expiry: float
    max_position: int | None
    declared: Declaration
    request: Request


class BucketTerms(NamedTuple):
    capacity: int
    refill_frequency: float
    refill_amount: int
    max_sleep: float | None
    initial_tokens: int | None
    declared: Declaration
    request: Request


def remembered(check: Check) -> Check:
    """Cache `check` for the same numbers of the same types."""
    known = lru_cache(maxsize=1024, typed=True)(check)

    def look_up(*numbers: Any) -> Any:
        try:
            return known(*numbers)
        except TypeError:  # an unhashable argument, for which `check` raises
            return check(*numbers)

    return cast(Check, look_up)


@remembered
def check_semaphore(
    capacity: int, max_sleep: float | None, expiry: float | None, max_position: int | None
) -> SemaphoreTerms:
    capacity = positive_int("Semaphore", "capacity", capacity)
    lease = DEFAULT_LEASE if expiry is None else seconds("Semaphore", "expiry", expiry)
    longest = check_max_sleep(max_sleep, "Semaphore")  # 0: as long as it takes, as None
    position = check_count(max_position, "Semaphore", "max_position")
    declared = declaration([Concurrency(capacity, lease)])
    # The last waiter may have `position` others before it.
    most = None if position is None else position + 1
    request = Request({}, sleep_of(longest or None, "Semaphore"), most)
    return SemaphoreTerms(capacity, longest, lease, position, declared, request)


@remembered
def check_bucket(
    capacity: int, per: float, amount: int, max_sleep: float | None, initial: int | None
) -> BucketTerms:
    capacity = positive_int("TokenBucket", "capacity", capacity)
    initial = check_initial("TokenBucket", "initial_tokens", initial, capacity)
    amount = positive_int("TokenBucket", "refill_amount", amount)
    per = seconds("TokenBucket", "refill_frequency", per)
    longest = check_max_sleep(max_sleep, "TokenBucket")  # 0: as long as it takes, as None
    declared = declaration([Rate(amount, per, capacity, initial, steps=True)])
    request = Request({}, sleep_of(longest or None, "TokenBucket"))
    return BucketTerms(capacity, per, amount, longest, initial, declared, request)
