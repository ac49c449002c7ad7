"""self-limiters: the classic, in Rust. Every instance brings a pool of connections of its own.

Its bucket makes the first token wait a whole period, so its period is a very short one here: no
caller waits. (It still sleeps once per acquire, and its timer knows whole milliseconds only.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.stage import PLENTY, Maker, Opening, Stage

NO_WAIT = 1e-6


@contextmanager
def token_bucket(stage: Stage) -> Iterator[Maker]:
    from self_limiters import TokenBucket

    yield lambda name: TokenBucket(
        name=name,
        capacity=PLENTY,
        refill_amount=PLENTY,
        refill_frequency=NO_WAIT,
        redis_url=stage.redis_url,
    )


def semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from self_limiters import Semaphore

        yield lambda name: Semaphore(name=name, capacity=capacity, redis_url=stage.redis_url)

    return opening
