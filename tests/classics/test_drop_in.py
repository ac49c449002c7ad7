"""Code written for self_limiters runs after a change of the import, its error handling included."""

from __future__ import annotations

import pytest

import headgate
from headgate import MaxSleepExceededError, RedisError, Semaphore, StoreError, TokenBucket
from tests.processes import finished

# As in the documentation of the original, with the import changed.
SCRIPT = """
import asyncio, sys
from headgate import Semaphore, TokenBucket, MaxSleepExceededError, RedisError

name, url = sys.argv[1:]

queue = Semaphore(name=name, capacity=5, max_sleep=60, expiry=30, redis_url=url)
bucket = TokenBucket(name=name, capacity=1, refill_amount=1, refill_frequency=60, max_sleep=30, redis_url=url)

async def fetch(number):
    async with queue:
        return number

async def main():
    print(await asyncio.gather(*(fetch(number) for number in range(20))))
    while True:
        try:
            async with bucket:
                print("token")
        except MaxSleepExceededError:
            print("too long")
            break
        except RedisError:
            print("redis is away")
            break

asyncio.run(main())
"""


def test_a_script_of_theirs_runs_here(name: str, redis_url: str) -> None:
    assert finished(SCRIPT, name, redis_url).splitlines() == [str(list(range(20))), "token", "too long"]


def test_the_names_they_import_are_there() -> None:
    for imported in ("Semaphore", "TokenBucket", "MaxSleepExceededError", "RedisError"):
        assert imported in headgate.__all__
    assert RedisError is StoreError
    assert not issubclass(MaxSleepExceededError, RedisError)  # "too long" and "redis is away" are different handlers


@pytest.mark.parametrize("make", [lambda **place: Semaphore("x", 1, **place), lambda **place: TokenBucket("x", 1, 1, 1, **place)])
async def test_a_server_that_is_not_there_is_their_redis_error(make: object) -> None:
    with pytest.raises(RedisError):
        async with make(redis_url="redis://127.0.0.1:1/0"):  # type: ignore[operator]
            pass


@pytest.mark.parametrize("make", [lambda **place: Semaphore("x", 1, **place), lambda **place: TokenBucket("x", 1, 1, 1, **place)])
def test_one_place_is_enough(make: object) -> None:
    """redis_url and store both say where the state lives: saying it twice is a mistake."""
    with pytest.raises(TypeError, match="one of them"):
        make(redis_url="redis://127.0.0.1:1/0", store="memory://")  # type: ignore[operator]
