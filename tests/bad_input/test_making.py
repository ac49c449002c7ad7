"""The arguments of limiters, semaphores, buckets and rate limiters: bad ones are refused in the
constructor, by a sentence, with nothing sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    Concurrency,
    LeaseLostError,
    Limiter,
    Rate,
    RateLimiter,
    Semaphore,
    TokenBucket,
)
from headgate.internals import queue_of
from tests.bad_input.values import (
    BAD_NAME,
    INF,
    NAN,
    NO_COUNT,
    NO_INT,
    NO_NAME,
    NO_NUMBER,
    NO_TIME,
    Hostile,
    Listener,
    assert_sentence,
    shown,
)

Make = Callable[..., Any]


def limiter(
    store: str, name: Any = "x", limits: tuple[Any, ...] = ("5/second",), **options: Any
) -> Limiter:
    return Limiter(name, *limits, store=store, **options)


def semaphore(store: str, name: Any = "x", capacity: Any = 1, **options: Any) -> Semaphore:
    return Semaphore(name, capacity, redis_url=store, **options)


def bucket(
    store: str,
    name: Any = "x",
    capacity: Any = 1,
    refill_amount: Any = 1,
    refill_frequency: Any = 1,
    **options: Any,
) -> TokenBucket:
    return TokenBucket(name, capacity, refill_frequency, refill_amount, redis_url=store, **options)


def rate_limiter(store: str, rate_limit: Any = 1, concurrency_limit: Any = 1) -> RateLimiter:
    return RateLimiter(rate_limit, concurrency_limit)


MAKERS: dict[str, Make] = {
    "Limiter": limiter,
    "Semaphore": semaphore,
    "TokenBucket": bucket,
    "RateLimiter": rate_limiter,
}
COUNTS = [
    *[("Semaphore", "capacity"), ("TokenBucket", "capacity"), ("TokenBucket", "refill_amount")],
    *[("RateLimiter", "rate_limit"), ("RateLimiter", "concurrency_limit")],
]
BOUNDS = [
    ("Limiter", "max_waiters"),
    ("Semaphore", "max_position"),
    ("TokenBucket", "initial_tokens"),
]  # None and 0 are fine
TIMES = [("Semaphore", "expiry"), ("TokenBucket", "refill_frequency")]
WAITS = [
    ("Limiter", "max_sleep"),
    ("Semaphore", "max_sleep"),
    ("TokenBucket", "max_sleep"),
]  # None and 0 are fine
NAMED = ["Limiter", "Semaphore", "TokenBucket"]


def refused(error: type[Exception], call: str, store: str, **bad: Any) -> None:
    """The call is refused, and its own words say so: the call, the parameter and the value."""
    ((field, value),) = bad.items()
    with pytest.raises(error) as caught:
        MAKERS[call](store, **bad)
    assert type(caught.value) is error
    assert_sentence(caught.value, f"{call}({field}={shown(value)})")


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "field"), COUNTS + BOUNDS)
@pytest.mark.parametrize("value", NO_INT, ids=shown)
def test_a_count_that_is_no_int_is_refused(
    call: str, field: str, value: object, nowhere: str
) -> None:
    refused(TypeError, call, nowhere, **{field: value})


@pytest.mark.parametrize(("call", "field"), COUNTS)
def test_a_count_that_is_none_is_refused(call: str, field: str, nowhere: str) -> None:
    refused(TypeError, call, nowhere, **{field: None})


@pytest.mark.parametrize(("call", "field"), COUNTS + BOUNDS)
@pytest.mark.parametrize("value", NO_COUNT, ids=shown)
def test_a_count_is_within_reason(call: str, field: str, value: int, nowhere: str) -> None:
    if value == 0 and (call, field) in BOUNDS:
        MAKERS[call](nowhere, **{field: value})
    else:
        refused(ValueError, call, nowhere, **{field: value})


@pytest.mark.parametrize(("call", "field"), TIMES + WAITS)
@pytest.mark.parametrize("value", NO_NUMBER, ids=shown)
def test_a_time_that_is_no_number_is_refused(
    call: str, field: str, value: object, nowhere: str
) -> None:
    refused(TypeError, call, nowhere, **{field: value})


@pytest.mark.parametrize(("call", "field"), TIMES + WAITS)
@pytest.mark.parametrize("value", NO_TIME, ids=shown)
def test_a_time_is_finite_and_within_reason(
    call: str, field: str, value: float, nowhere: str
) -> None:
    refused(ValueError, call, nowhere, **{field: value})


@pytest.mark.parametrize(("call", "field"), TIMES)
@pytest.mark.parametrize("value", [0, 0.0, -0.0, 1e-9], ids=shown)
def test_a_time_of_zero_or_nearly_zero_is_refused(
    call: str, field: str, value: float, nowhere: str
) -> None:
    refused(ValueError, call, nowhere, **{field: value})


def test_a_bucket_without_a_refill_frequency_is_refused(nowhere: str) -> None:
    refused(TypeError, "TokenBucket", nowhere, refill_frequency=None)


def test_a_bucket_cannot_start_fuller_than_full(nowhere: str) -> None:
    with pytest.raises(ValueError, match="capacity of 3") as caught:
        bucket(nowhere, capacity=3, initial_tokens=4)
    assert_sentence(caught.value, "TokenBucket(initial_tokens=4)")


@pytest.mark.parametrize(
    "value", [None, True, 1, b"cancel", ["cancel"], LeaseLostError, Hostile()], ids=shown
)
def test_an_on_lost_that_is_no_text_is_refused(value: object, nowhere: str) -> None:
    refused(TypeError, "Limiter", nowhere, on_lost=value)


@pytest.mark.parametrize(
    "value", ["", "Cancel", "cancel ", "raise", "x" * 10**6, "a\ud800b"], ids=shown
)
def test_on_lost_takes_two_words_only(value: str, nowhere: str) -> None:
    refused(ValueError, "Limiter", nowhere, on_lost=value)


# Names and keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", NAMED)
@pytest.mark.parametrize("name", NO_NAME, ids=shown)
def test_a_limiter_refuses_a_name_that_is_no_text(call: str, name: object, nowhere: str) -> None:
    refused(TypeError, call, nowhere, name=name)


@pytest.mark.parametrize("call", NAMED)
@pytest.mark.parametrize("name", BAD_NAME, ids=shown)
def test_a_name_has_1_to_256_bytes(call: str, name: str, nowhere: str) -> None:
    refused(ValueError, call, nowhere, name=name)


@pytest.mark.parametrize(
    ("key", "error"),
    [*((key, TypeError) for key in [*NO_NAME, slice(1)]), *((key, ValueError) for key in BAD_NAME)],
    ids=shown,
)
def test_a_key_is_text_of_1_to_256_bytes(key: Any, error: type[Exception], nowhere: str) -> None:
    with pytest.raises(error) as caught:
        limiter(nowhere)[key]
    assert_sentence(caught.value, "Limiter('x')[", shown(key))


# Limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [None, 5, 5.0, NAN, True, b"5/s", ["5/s"], (Rate(1, 1),), Rate, Concurrency, Hostile()],
    ids=shown,
)
def test_a_limiter_refuses_an_object_that_is_no_limit(limit: object, nowhere: str) -> None:
    with pytest.raises(TypeError) as caught:
        limiter(nowhere, limits=(limit,))
    assert_sentence(caught.value, "Limiter('x')", shown(limit), "'100/minute'")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "5/",
        "0/second",
        "-1/s",
        "nan/s",
        "1e3/s",
        "inf concurrent",
        "true/s",
        "9007199254740992/s",
        "5 every 0s",
    ],
)
def test_a_text_that_says_no_limit_is_refused(text: str, nowhere: str) -> None:
    """The text of a limit is pointed at, over several lines (tests/unit/test_grammar.py
    holds how).
    """
    with pytest.raises(ValueError, match=r"^parse_limit\(") as caught:
        limiter(nowhere, limits=("5/second", text))
    assert shown(text) in str(caught.value)
    assert str(caught.value).splitlines()[-1].startswith("Write it like")


def test_a_limiter_without_limits_is_refused(nowhere: str) -> None:
    with pytest.raises(ValueError, match="no limits") as caught:
        limiter(nowhere, limits=())
    assert_sentence(caught.value, "Limiter('x')", "'100/minute'")


# Updates ------------------------------------------------------------------------------------------


UPDATES: dict[str, Callable[..., Any]] = {
    "update": lambda limiter, *limits: limiter.update(*limits),
    "aupdate": lambda limiter, *limits: asyncio.run(limiter.aupdate(*limits)),
    "of a key": lambda limiter, *limits: limiter["k"].update(*limits),
}


def updated(way: str) -> str:
    return "Limiter('x')['k'].update(...)" if way == "of a key" else "Limiter('x').update(...)"


@pytest.mark.parametrize("way", UPDATES)
@pytest.mark.parametrize(
    "limit", [None, 5, True, ["5/s"], Rate, Hostile(), "redis://localhost"], ids=shown
)
def test_an_update_refuses_an_object_that_is_no_limit(way: str, limit: Any, nowhere: str) -> None:
    with pytest.raises(TypeError) as caught:
        UPDATES[way](limiter(nowhere), "5/second", limit)
    assert_sentence(caught.value, updated(way))


@pytest.mark.parametrize("way", UPDATES)
def test_an_update_refuses_limits_that_a_limiter_refuses(way: str, nowhere: str) -> None:
    its = limiter(nowhere)
    with pytest.raises(ValueError, match="no limits") as caught:
        UPDATES[way](its)
    assert_sentence(caught.value, updated(way), "'100/minute'")
    with pytest.raises(ValueError, match=r"^parse_limit\("):
        UPDATES[way](its, "5/second", "100 per minite")


def test_a_bad_update_changes_nothing(nowhere: str) -> None:
    its = limiter(nowhere)
    for way, bad in [("update", 5), ("aupdate", "100 per minite")]:
        with pytest.raises((TypeError, ValueError)):
            UPDATES[way](its, "7/second", bad)

    assert queue_of(its).declared.capacity == {"requests": 5}


@pytest.mark.parametrize("function", [5, None, "fetch", 3.0, Hostile()], ids=shown)
def test_only_functions_are_decorated(function: Any, nowhere: str) -> None:
    with pytest.raises(TypeError) as caught:
        limiter(nowhere)(function)
    assert_sentence(caught.value, "Limiter 'x'", shown(function), "acquire(")


# The other side: good input is sent ---------------------------------------------------------------


async def test_good_input_is_sent_to_the_server(listener: Listener) -> None:
    """The foundation of the tests of this folder: when anything is sent, the listener knows."""
    asking = asyncio.create_task(limiter(listener.url).astatus())
    await asyncio.to_thread(listener.wait_for_client)
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.parametrize("value", [None, 0, 0.0, 1e-9, 0.5, 315_359_999], ids=shown)
@pytest.mark.parametrize(("call", "field"), WAITS)
def test_any_max_sleep_and_retry_for_from_none_to_ten_years_is_accepted(
    call: str, field: str, value: float | None, nowhere: str
) -> None:
    MAKERS[call](nowhere, **{field: value})


def test_an_infinite_max_sleep_is_refused_in_favour_of_none(nowhere: str) -> None:
    with pytest.raises(ValueError, match="pass None to wait as long as it takes"):
        limiter(nowhere, max_sleep=INF)


@pytest.mark.parametrize("value", [-1, -0.5, NAN, INF, 315_360_000, True, "5", [5]], ids=shown)
def test_a_retry_for_that_is_no_finite_time_is_refused(value: Any, nowhere: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        limiter(nowhere, retry_for=value)
    assert_sentence(caught.value, "Limiter(retry_for=")
