"""The classic primitives: code that was written for self_limiters, with one line changed, the
import.

    -from self_limiters import MaxSleepExceededError, RedisError, Semaphore, TokenBucket
    +from headgate import MaxSleepExceededError, RedisError, Semaphore, TokenBucket

In this process: `python examples/classics.py`
On a server: `python examples/classics.py redis://localhost:6379`
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time

from headgate import MaxSleepExceededError, RateLimiter, RedisError, Semaphore, TokenBucket

URL = sys.argv[1] if len(sys.argv) > 1 else None
DATA = b"headgate" * 10_000

queue = Semaphore(name="hashing", capacity=2, max_sleep=30, redis_url=URL)
bucket = TokenBucket(
    name="hashing", capacity=1, refill_amount=1, refill_frequency=0.1, max_sleep=30, redis_url=URL
)


async def digest(number: int) -> str:
    async with queue:
        return await asyncio.to_thread(lambda: hashlib.sha256(DATA + bytes([number])).hexdigest())


async def in_steps() -> float:
    """Three entries, one every 0.1 s: the first may find a token there."""
    began = time.monotonic()
    for _ in range(3):
        async with bucket:
            await digest(0)
    return time.monotonic() - began


async def impatient() -> str:
    hourly = TokenBucket(
        "hourly", capacity=1, refill_amount=1, refill_frequency=3600, max_sleep=1, redis_url=URL
    )
    try:
        for _ in range(2):
            async with hourly:
                pass
    except MaxSleepExceededError as error:
        return f"refused at once, the next token is {error.retry_after / 60:.0f} minutes away"
    return "not refused"


async def main() -> None:
    digests = await asyncio.gather(*map(digest, range(10)))
    print(f"Semaphore: {len(set(digests))} digests, two at a time")
    print(f"TokenBucket: three entries, the last after 0.2 s or more: {await in_steps() >= 0.2}")
    print(f"TokenBucket: {await impatient()}")
    limiter = RateLimiter(rate_limit=100, concurrency_limit=3)
    async with limiter.throttle():
        print("RateLimiter: passed")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RedisError as error:
        sys.exit(str(error))
