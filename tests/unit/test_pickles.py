"""Limiters as values: copied they are the same limiter, pickled they are made again from their
arguments.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headgate import Concurrency, Limiter, RateLimiter, Semaphore, TokenBucket
from headgate.internals import queue_of, store_of
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import declared
from tests.processes import finished

URL = "redis://:a-password@localhost:6379/3"
Remade = Callable[[Any], Any]
COPIES: list[Remade] = [copy.copy, copy.deepcopy]
PICKLES: list[Remade] = [
    lambda made, protocol=protocol: pickle.loads(pickle.dumps(made, protocol))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
]


@pytest.mark.parametrize("again", PICKLES, ids=range(len(PICKLES)))
@pytest.mark.parametrize("store", [None, "memory://", URL])
def test_a_pickled_limiter_has_all_that_it_was_made_with(
    name: str, store: str | None, again: Remade
) -> None:
    options: dict[str, Any] = {
        "max_sleep": 2.5,
        "max_waiters": 7,
        "on_wait": print,
        "on_lost": "cancel",
    }
    limiter = Limiter(name, "100/minute", Concurrency(5, lease=9), store=store, **options)

    other = again(limiter)

    assert (other.name, other.key, other.limits) == (name, None, limiter.limits)
    assert queue_of(other).declared.program == queue_of(limiter).declared.program
    mine, its = limiter._default, other._default
    assert [its.max_sleep, its.max_waiters, its.on_wait] == [
        mine.max_sleep,
        mine.max_waiters,
        print,
    ]
    assert type(queue_of(other)) is type(queue_of(limiter))
    assert store_of(other) is store_of(limiter)


@pytest.mark.parametrize("processes", [4, None])
def test_a_pickled_limiter_keeps_its_fallback(name: str, processes: int | None) -> None:
    mode: Any = "local" if processes else "open"
    limiter = Limiter(name, "100/minute", store=URL, on_store_error=mode, processes=processes)

    other = pickle.loads(pickle.dumps(limiter))

    assert str(store_of(other)._mode) == str(store_of(limiter)._mode)


@pytest.mark.parametrize("again", [*COPIES, *PICKLES], ids=range(len(COPIES) + len(PICKLES)))
def test_a_limiter_shares_its_state_with_all_that_are_made_from_it(
    name: str, again: Remade
) -> None:
    """In one process; so do keys, and each key with no other."""
    limiter = Limiter(name, Concurrency(1))

    with again(limiter), again(limiter["a"]):
        assert not limiter.try_acquire()
        assert not limiter["a"].try_acquire()
        with limiter["b"]:
            pass


def test_a_pickled_limiter_declares_its_last_update(name: str) -> None:
    limiter = Limiter(name, "100/minute")
    limiter.update("50/minute")

    assert pickle.loads(pickle.dumps(limiter)).limits == limiter.limits
    assert Limiter(name, "50/minute").status().limits[0].capacity == 50


@pytest.mark.parametrize("again", COPIES)
def test_a_limiter_with_a_client_as_its_store_can_be_copied(name: str, again: Remade) -> None:
    client = redis.Redis.from_url(URL)
    limiter = Limiter(name, "5/second", store=client)

    assert again(limiter) is limiter
    client.close()


@pytest.mark.parametrize(
    "made",
    [
        lambda store: Limiter("x", "5/second", store=store),
        lambda store: Semaphore("x", 5, store=store),
    ],
)
def test_a_limiter_with_a_client_as_its_store_says_why_it_is_not_pickled(
    made: Callable[[Any], Any],
) -> None:
    client = redis.Redis.from_url(URL)
    for store, kind in ((client, "Redis"), (MemoryStore(), "MemoryStore")):
        with pytest.raises(
            TypeError,
            match=rf"'x'\) cannot be pickled: its store is a {kind} object.*store='redis://",
        ) as caught:
            pickle.dumps(made(store))
        assert "a-password" not in str(caught.value)
    client.close()


def test_a_limiter_whose_callback_does_not_pickle_is_not_pickled(name: str) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(Limiter(name, "5/second", on_wait=lambda waiting: None))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Semaphore("pickled", 3, max_sleep=0, expiry=7, max_position=4),
        lambda: TokenBucket("pickled", 10, 2.5, 5, max_sleep=9, initial_tokens=1),
        lambda: Semaphore("pickled", 3, redis_url=URL),
        lambda: TokenBucket("pickled", 10, 2.5, 5, URL),
    ],
    ids=["semaphore", "token bucket", "semaphore on redis", "token bucket on redis"],
)
@pytest.mark.parametrize("again", [*COPIES, *PICKLES], ids=range(len(COPIES) + len(PICKLES)))
def test_a_copied_or_pickled_classic_is_the_same_queue(
    make: Callable[[], Semaphore | TokenBucket], again: Remade
) -> None:
    limiter = make()
    other = again(limiter)

    assert type(other) is type(limiter)
    assert queue_of(declared(other)) is queue_of(declared(limiter))
    assert other._terms[:5] == limiter._terms[:5]


def test_a_pickled_rate_limiter_has_its_numbers_and_a_state_of_its_own() -> None:
    limiter = RateLimiter(5, 1)

    other = pickle.loads(pickle.dumps(limiter))

    assert (other.rate_limit, other.concurrency_limit) == (5, 1)
    with limiter.throttle(), other.throttle():
        pass
    assert copy.copy(limiter) is copy.deepcopy(limiter) is limiter


@pytest.mark.parametrize("send", [*COPIES, pickle.dumps])
def test_an_acquire_is_neither_copied_nor_pickled(name: str, send: Callable[[Any], object]) -> None:
    acquire = Limiter(name, "5/second").acquire()
    with pytest.raises(
        TypeError,
        match=rf"acquire\(\) of limiter '{name}'> cannot be copied or pickled: .*; "
        "send the limiter",
    ):
        send(acquire)
    acquire.close()


@pytest.mark.parametrize("send", [*COPIES, pickle.dumps])
def test_a_permit_is_neither_copied_nor_pickled(name: str, send: Callable[[Any], object]) -> None:
    with Limiter(name, Concurrency(1)).acquire() as permit:
        with pytest.raises(
            TypeError,
            match=r"<Permit of .*> cannot be copied or pickled: .*; "
            "release it here, and send its fence",
        ):
            send(permit)
        assert permit.held


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.proof)])
def test_a_pool_of_processes_shares_the_limits_of_a_limiter_on_redis(
    name: str, redis_url: str, method: str
) -> None:
    """Given 5 calls an hour, one of them before the pool, then 4 are left for the pool, 5 for a
    key, and none after it.
    """
    assert finished("pickled", redis_url, name, method).split() == ["True", "4", "5", "False"]
