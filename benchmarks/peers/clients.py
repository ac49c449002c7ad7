"""The redis-py clients that the peers are given: made once a row, as their documentation has it,
and shared.

redis-py's default pool refuses the 101st caller. The patient pool makes callers queue for a
connection, as a user would write it after that refusal. At 100 at once it is no quicker, so it
stands in only where the default fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import Redis as AsyncRedis

from benchmarks.stage import Stage

PATIENT_POOL = 50  # redis-py's own default for a blocking pool


@contextmanager
def async_client(stage: Stage) -> Iterator[AsyncRedis]:
    client = AsyncRedis.from_url(stage.redis_url)
    try:
        yield client
    finally:
        stage.run(client.aclose())


@contextmanager
def patient_client(stage: Stage) -> Iterator[AsyncRedis]:
    pool = BlockingConnectionPool.from_url(
        stage.redis_url, max_connections=PATIENT_POOL, timeout=None
    )
    client = AsyncRedis.from_pool(pool)
    try:
        yield client
    finally:
        stage.run(client.aclose())


@contextmanager
def sync_client(stage: Stage) -> Iterator[Redis]:
    with Redis.from_url(stage.redis_url) as client:
        yield client
