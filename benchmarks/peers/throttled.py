"""throttled-py (imported as `throttled`): one store for all, a `Throttled` a key, entered with
(async) with.

Its default refuses instead of waiting; `timeout` makes it wait, as the others do. Here no call
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.clients import PATIENT_POOL
from benchmarks.stage import PLENTY, Maker, Opening, Stage

WAIT = 60
PATIENT = {
    "CONNECTION_POOL_CLASS": "redis.asyncio.BlockingConnectionPool",
    "CONNECTION_POOL_KWARGS": {"max_connections": PATIENT_POOL, "timeout": None},
}


def on_redis(algorithm: str, options: dict[str, Any] | None = None) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from throttled.asyncio import RedisStore, Throttled, rate_limiter

        store = RedisStore(server=stage.redis_url, options=options)
        quota = rate_limiter.per_hour(PLENTY)
        yield lambda name: Throttled(
            key=name, using=algorithm, quota=quota, store=store, timeout=WAIT
        )

    return opening


def on_redis_sync(algorithm: str) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from throttled import RedisStore, Throttled, rate_limiter

        store = RedisStore(server=stage.redis_url)
        quota = rate_limiter.per_hour(PLENTY)
        yield lambda name: Throttled(
            key=name, using=algorithm, quota=quota, store=store, timeout=WAIT
        )

    return opening


token_bucket = on_redis("token_bucket")
token_bucket_patient = on_redis("token_bucket", PATIENT)
token_bucket_sync = on_redis_sync("token_bucket")
window = on_redis("sliding_window")
window_sync = on_redis_sync("sliding_window")


@contextmanager
def rate(_stage: Stage) -> Iterator[Maker]:
    from throttled.asyncio import MemoryStore, Throttled, rate_limiter

    store, quota = MemoryStore(), rate_limiter.per_hour(PLENTY)
    yield lambda name: Throttled(key=name, quota=quota, store=store, timeout=WAIT)


@contextmanager
def rate_sync(_stage: Stage) -> Iterator[Maker]:
    from throttled import MemoryStore, Throttled, rate_limiter

    store, quota = MemoryStore(), rate_limiter.per_hour(PLENTY)
    yield lambda name: Throttled(key=name, quota=quota, store=store, timeout=WAIT)
