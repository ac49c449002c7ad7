"""The entrants of the faults, and how each is used by its own documentation: one entry for each
caller.

Here is only how a library is made and how it says that it granted; the faults stand in the works. A
library is imported when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis.asyncio import Redis as AsyncRedis

LEASE = 2  # seconds after which the permits of a killed process are to be back
TOKENS = 10  # in a new bucket
HOUR = 3600

Entry = AbstractAsyncContextManager[Any]
Maker = Callable[[], Entry]  # for one caller each
Making = Callable[[str, str], Maker]  # with a server's URL and a name
ClientOf = Callable[[str], AsyncRedis]


class Kind(NamedTuple):
    """One kind of limiter of one library: `grants` is the command that it is granted by."""

    maker: Making
    capacity: int
    grants: bytes
    # Of its script, in place of tokens: its first token waits for a whole period, and some cost
    # two.
    counts_runs: bool = False


class Entrant(NamedTuple):
    name: str
    semaphore: Kind | None
    bucket: Kind | None


# headgate -----------------------------------------------------------------------------------------


def our_semaphore(url: str, name: str) -> Maker:
    from headgate import Semaphore

    semaphore = Semaphore(name, capacity=5, expiry=LEASE, redis_url=url)
    return lambda: semaphore


def our_bucket(url: str, name: str) -> Maker:
    from headgate import TokenBucket

    bucket = TokenBucket(
        name, capacity=TOKENS, refill_amount=1, refill_frequency=HOUR, redis_url=url
    )
    return lambda: bucket


# The classics -------------------------------------------------------------------------------------


def rust_semaphore(url: str, name: str) -> Maker:
    from self_limiters import Semaphore

    semaphore = Semaphore(name=name, capacity=5, expiry=LEASE, redis_url=url)
    return lambda: semaphore


def rust_bucket(url: str, name: str) -> Maker:
    from self_limiters import TokenBucket

    bucket = TokenBucket(
        name=name, capacity=TOKENS, refill_amount=TOKENS, refill_frequency=1, redis_url=url
    )
    return lambda: bucket


def limiters_semaphore(client_of: ClientOf) -> Making:
    def making(url: str, name: str) -> Maker:
        from limiters import AsyncSemaphore

        semaphore = AsyncSemaphore(name=name, capacity=5, expiry=LEASE, connection=client_of(url))
        return lambda: semaphore

    return making


def limiters_bucket(client_of: ClientOf) -> Making:
    def making(url: str, name: str) -> Maker:
        from limiters import AsyncTokenBucket

        client = client_of(url)
        bucket = AsyncTokenBucket(
            name=name, capacity=TOKENS, refill_amount=1, refill_frequency=HOUR, connection=client
        )
        return lambda: bucket

    return making


def steindamm_semaphore(client_of: ClientOf) -> Making:
    def making(url: str, name: str) -> Maker:
        from steindamm import AsyncSemaphore

        made: Any = AsyncSemaphore.create(
            name=name, capacity=5, expiry=LEASE, max_sleep=0, connection=client_of(url)
        )
        return lambda: made

    return making


def steindamm_bucket(client_of: ClientOf) -> Making:
    def making(url: str, name: str) -> Maker:
        from steindamm import AsyncTokenBucket

        made: Any = AsyncTokenBucket.create(
            name=name,
            capacity=TOKENS,
            refill_amount=1,
            refill_frequency=HOUR,
            max_sleep=0,
            connection=client_of(url),
        )
        return lambda: made

    return making


# Others -------------------------------------------------------------------------------------------


def throttled_bucket(url: str, name: str) -> Maker:
    from throttled.asyncio import RedisStore, Throttled, rate_limiter

    quota = rate_limiter.per_hour(TOKENS)
    throttled = Throttled(
        key=name, using="token_bucket", quota=quota, store=RedisStore(server=url), timeout=HOUR
    )
    return lambda: throttled


def redis_lock(client_of: ClientOf) -> Making:
    def making(url: str, name: str) -> Maker:
        client = client_of(url)
        return lambda: client.lock(name, timeout=LEASE)

    return making


# redis-py's client, in the two ways to make one: they differ in their action when a reply is lost.


def by_url(url: str) -> AsyncRedis:
    """As their documentation has it."""
    return AsyncRedis.from_url(url)


def by_host(url: str) -> AsyncRedis:
    """With which redis-py asks again by itself."""
    where = urlsplit(url)
    return AsyncRedis(host=str(where.hostname), port=where.port or 6379)


FCALL, EVALSHA, BLPOP, SET = b"FCALL", b"EVALSHA", b"BLPOP", b"SET\r\n"


def on_redis_py(client_of: ClientOf, note: str) -> tuple[Entrant, ...]:
    """The entrants that are given a client of redis-py."""
    semaphores, buckets = limiters_semaphore(client_of), limiters_bucket(client_of)
    return (
        Entrant(
            f"redis-rate-limiters{note}", Kind(semaphores, 5, BLPOP), Kind(buckets, TOKENS, EVALSHA)
        ),
        Entrant(
            f"steindamm{note}",
            Kind(steindamm_semaphore(client_of), 5, BLPOP),
            Kind(steindamm_bucket(client_of), TOKENS, EVALSHA),
        ),
        Entrant(f"redis-py Lock{note}", Kind(redis_lock(client_of), 1, SET), None),
    )


ENTRANTS = (
    Entrant("headgate", Kind(our_semaphore, 5, FCALL), Kind(our_bucket, TOKENS, FCALL)),
    Entrant(
        "self-limiters",
        Kind(rust_semaphore, 5, BLPOP),
        Kind(rust_bucket, TOKENS, EVALSHA, counts_runs=True),
    ),
    Entrant("throttled-py", None, Kind(throttled_bucket, TOKENS, EVALSHA)),
    *on_redis_py(by_url, ""),
    *on_redis_py(by_host, ", Redis(host)"),
)
