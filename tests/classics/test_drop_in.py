"""Code written for self_limiters runs after a change of the import, its error handling included.

Their keywords are those of self_limiters 0.4.0, its last release, by keyword and by position.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import headgate
from headgate import (
    MaxSleepExceededError,
    QueueFullError,
    RedisError,
    Semaphore,
    StoreError,
    TokenBucket,
)
from headgate.internals import queue_of
from tests.processes import finished
from tests.world import HOUR, LONG, World, at_rest, told

# The examples of its documentation, in one script: only the import is another one, and each part
# prints its effect.
SCRIPT = """
import asyncio, logging, sys
from headgate import Semaphore, TokenBucket, MaxSleepExceededError, RedisError

# An outage is logged, on stderr if no handler is there.
logging.getLogger('headgate').addHandler(logging.NullHandler())
name, url = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
inside = most = 0

def limit(name, capacity):
    def middle(f):
        async def inner(*args, **kwargs):
            async with Semaphore(name=name, capacity=capacity, redis_url=url):
                return await f(*args, **kwargs)
        return inner
    return middle

@limit(name=name + '-foo', capacity=5)
async def fetch_foo(id):
    global inside, most
    inside += 1
    most = max(most, inside)
    await asyncio.sleep(0)
    inside -= 1
    return id

async def one_after_another(queue, rounds=3):
    while True:
        async with queue:
            rounds -= 1
            print('turn')
        if not rounds:
            break

async def until_it_takes_too_long():
    while True:
        try:
            async with TokenBucket(
                    name=name,
                    capacity=1,
                    refill_amount=1,
                    refill_frequency=60,
                    max_sleep=30,
                    redis_url=url
            ):
                print('token')
        except MaxSleepExceededError:
            print('too long')
            break

away = Semaphore(name=name, capacity=1, redis_url='redis://127.0.0.1:1')

async def main():
    # 5 requests at the time
    print(await asyncio.gather(*map(fetch_foo, range(20))), most)
    await one_after_another(
        Semaphore(
            name=name, capacity=5, max_sleep=60, expiry=30, redis_url=url, connection_pool_size=15
        )
    )
    await until_it_takes_too_long()
    try:
        async with away:
            pass
    except RedisError:
        print('redis is away')

asyncio.run(main())
"""
SAID = [f"{list(range(20))} 5", "turn", "turn", "turn", "token", "too long", "redis is away"]

# Each keyword of theirs, with a value that they take; None where their signature has it.
THEIRS: dict[type[Any], dict[str, list[Any]]] = {
    Semaphore: {
        "name": ["x"],
        "capacity": [5],
        "max_sleep": [None, 0, 0.0, 60, 0.5],
        "expiry": [None, 30, 60],
        "redis_url": [None, "redis://127.0.0.1:1"],
        "connection_pool_size": [None, 15],
    },
    TokenBucket: {
        "name": ["x"],
        "capacity": [5],
        "refill_frequency": [60, 0.5],
        "refill_amount": [2],
        "max_sleep": [None, 0, 0.0, 600, 0.5],
        "redis_url": [None, "redis://127.0.0.1:1"],
        "connection_pool_size": [None, 15],
    },
}
ATTRIBUTES = {
    Semaphore: ["name", "capacity", "max_sleep", "expiry"],
    TokenBucket: ["name", "capacity", "refill_frequency", "refill_amount"],
}


def first(kind: type[Any]) -> dict[str, Any]:
    return {keyword: values[-1] for keyword, values in THEIRS[kind].items()}


@pytest.mark.proof
@pytest.mark.parametrize("place", ["redis", "this process"])
def test_a_script_for_the_original_library_runs_unchanged(
    place: str, name: str, redis_url: str
) -> None:
    """With every warning an error, in a process of its own."""
    where = [redis_url] if place == "redis" else []
    assert finished(SCRIPT, name, *where).splitlines() == SAID


@pytest.mark.parametrize("kind", THEIRS)
def test_every_keyword_of_the_original_library_is_accepted(kind: type[Any]) -> None:
    parameters = inspect.signature(kind).parameters

    assert [keyword for keyword in THEIRS[kind] if keyword not in parameters] == []
    for keyword, values in THEIRS[kind].items():
        for value in values:
            kind(**{**first(kind), keyword: value})
        left_out = {key: value for key, value in first(kind).items() if key != keyword}
        if parameters[keyword].default is not inspect.Parameter.empty:
            kind(**left_out)


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_the_attributes_of_the_original_library_are_there(kind: type[Any]) -> None:
    made = kind(**first(kind))
    assert {each: getattr(made, each) for each in ATTRIBUTES[kind]} == {
        each: first(kind)[each] for each in ATTRIBUTES[kind]
    }


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes_are_read_only(kind: type[Any]) -> None:
    made = kind(**first(kind))
    for attribute in ATTRIBUTES[kind]:
        with pytest.raises(AttributeError, match=attribute):
            setattr(made, attribute, 1)


@pytest.mark.parametrize("kind", ATTRIBUTES)
@pytest.mark.parametrize("max_sleep", [None, 0, 0.0, 2.5])
def test_max_sleep_reads_back_as_given(kind: type[Any], max_sleep: float | None) -> None:
    assert kind(**{**first(kind), "max_sleep": max_sleep}).max_sleep == max_sleep


def test_messages_name_a_classic_as_the_user_wrote_it(name: str) -> None:
    """A semaphore called m s is Semaphore 'm s', and a full queue advises its own option."""
    semaphore = Semaphore(f"{name} s", 1, max_position=0, max_sleep=1e-6)

    async def story() -> str:
        async with semaphore:
            waiter = asyncio.create_task(Semaphore(f"{name} s", 1).__aenter__())
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError) as full:
                await semaphore.__aenter__()
            waiter.cancel()
            with pytest.raises(MaxSleepExceededError) as refused:
                await semaphore.__aenter__()
        return f"{full.value} {refused.value}"

    said = asyncio.run(story())
    assert said.count(f"Semaphore '{name} s'") == 2
    assert "max_position" in said
    assert "max_waiters" not in said


def test_an_expiry_of_none_means_30_seconds() -> None:
    """They have None there by default, and take it for thirty seconds."""
    assert Semaphore("x", 1, expiry=None).expiry == Semaphore("x", 1).expiry == 30


@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize("size", [0, -1, True, "15", 1.5])
def test_an_impossible_connection_pool_size_is_refused(kind: type[Any], size: object) -> None:
    """One connection serves all callers here, so the number is not used. A nonsensical number is an
    error all the same.
    """
    with pytest.raises((TypeError, ValueError), match=rf"^{kind.__name__}\(connection_pool_size="):
        kind(**{**first(kind), "connection_pool_size": size})


def test_the_names_that_scripts_import_are_there() -> None:
    for imported in ("Semaphore", "TokenBucket", "MaxSleepExceededError", "RedisError"):
        assert imported in headgate.__all__
    assert RedisError is StoreError
    assert not issubclass(
        MaxSleepExceededError, RedisError
    )  # "too long" and "redis is unavailable" are different handlers


@told
async def test_a_hundred_instances_can_be_made_and_entered_at_once(world: World) -> None:
    """Their own measure: an instance for each caller, all at the same time, and everything given
    back at the end (L6).
    """
    through: list[int] = []

    async def enter(number: int, entrance: Any) -> None:
        async with entrance:
            through.append(number)

    semaphores = [
        Semaphore(name=world.name, capacity=1, max_sleep=LONG, **world.place) for _ in range(100)
    ]
    await asyncio.gather(*(enter(number, each) for number, each in enumerate(semaphores)))
    buckets = [
        TokenBucket(
            name=world.name,
            capacity=100,
            refill_amount=1,
            refill_frequency=HOUR,
            max_sleep=LONG,
            **world.place,
        )
        for _ in range(100)
    ]
    await asyncio.gather(*(enter(100 + number, each) for number, each in enumerate(buckets)))

    assert through == list(range(200))
    await at_rest(queue_of(semaphores[0]))  # type: ignore[arg-type]  # a line tells its status as a limiter does
