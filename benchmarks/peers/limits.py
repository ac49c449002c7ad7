"""limits: it has windows and no bucket, and answers yes or no instead of waiting: its `hit` is just
called.

For a rate it stands in with its cheapest strategy, the fixed window. Its moving window is exact, as
the `Window` of headgate is; its sliding window counter is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.stage import PLENTY, Maker, Opening, Stage


class RefusedError(Exception):
    """limits said no where there was plenty left."""


def async_opening(strategy: str, storage_of: Callable[[Stage], Any]) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from limits import RateLimitItemPerHour
        from limits.aio.strategies import STRATEGIES

        strategies: dict[str, Any] = dict(STRATEGIES)
        limiter, item = strategies[strategy](storage_of(stage)), RateLimitItemPerHour(PLENTY)

        def make(name: str) -> object:
            async def call() -> None:
                if not await limiter.hit(item, name):
                    raise RefusedError

            return call

        yield make

    return opening


def sync_opening(strategy: str, storage_of: Callable[[Stage], Any]) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from limits import RateLimitItemPerHour
        from limits.strategies import STRATEGIES

        strategies: dict[str, Any] = dict(STRATEGIES)
        limiter, item = strategies[strategy](storage_of(stage)), RateLimitItemPerHour(PLENTY)

        def make(name: str) -> object:
            def call() -> None:
                if not limiter.hit(item, name):
                    raise RefusedError

            return call

        yield make

    return opening


def async_memory(_stage: Stage) -> object:
    from limits.aio.storage import MemoryStorage

    return MemoryStorage()


def async_redis(stage: Stage) -> object:
    from limits.aio.storage import RedisStorage

    return RedisStorage(f"async+{stage.redis_url}", implementation="redispy")


def sync_memory(_stage: Stage) -> object:
    from limits.storage import MemoryStorage

    return MemoryStorage()


def sync_redis(stage: Stage) -> object:
    from limits.storage import RedisStorage

    return RedisStorage(stage.redis_url)


rate = async_opening("fixed-window", async_memory)
rate_sync = sync_opening("fixed-window", sync_memory)
fixed_window = async_opening("fixed-window", async_redis)
fixed_window_sync = sync_opening("fixed-window", sync_redis)
moving_window = async_opening("moving-window", async_redis)
moving_window_sync = sync_opening("moving-window", sync_redis)
sliding_counter = async_opening("sliding-window-counter", async_redis)
sliding_counter_sync = sync_opening("sliding-window-counter", sync_redis)
