"""The requests of an acquire and the units of a settlement: bad ones are refused before anything is
sent, and nothing is charged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    Permit,
    Quota,
    Rate,
    Window,
)
from tests.bad_input.values import (
    NO_COUNT,
    NO_INT,
    NO_NUMBER,
    NO_TIME,
    Hostile,
    assert_sentence,
    shown,
)
from tests.world import HOUR, World, soon, told, used

Ask = Callable[..., Any]

WAYS: dict[str, Ask] = {
    "acquire": lambda limiter, *cost, **units: limiter.acquire(*cost, **units),
    "acquire_sync": lambda limiter, *cost, **units: limiter.acquire_sync(*cost, **units),
    "try_acquire": lambda limiter, *cost, **units: limiter.try_acquire(*cost, **units),
    "atry_acquire": lambda limiter, *cost, **units: asyncio.run(
        limiter.atry_acquire(*cost, **units)
    ),
    "of a key": lambda limiter, *cost, **units: limiter["tenant-7"].acquire(*cost, **units),
}
WAITING = ["acquire", "acquire_sync", "of a key"]
LIMITS = (
    Rate(10, per=1),
    Rate(1000, per=60, unit="tokens"),
    Concurrency(64, unit="mb"),
    Concurrency(5),
)
# limits, cost, the words for an acquire that can never pass
NEVER = [
    ([Rate(10, per=1)], {"requests": 11}, "11 requests", "10"),
    ([Rate(10, per=1, capacity=3)], {"requests": 4}, "4 requests", "3"),
    ([Rate(1, per=1, capacity=20, steps=True)], {"requests": 21}, "21 requests", "20"),
    ([Window(10, per=1)], {"requests": 11}, "11 requests", "10"),
    ([Quota(10, per=HOUR)], {"requests": 11}, "11 requests", "10"),
    ([Concurrency(5)], {"permits": 6}, "6 permits", "5"),
    ([Concurrency(64, unit="mb")], {"mb": 65}, "65 mb", "64"),
    (["10/second", "20 in any minute"], {"requests": 11}, "11 requests", "10"),
    (
        [Rate(10, per=1), Window(100, per=60), Quota(7, per=HOUR)],
        {"requests": 8},
        "8 requests",
        "7",
    ),
    (
        [Rate(10, per=1), Rate(900, per=60, unit="tokens")],
        {"requests": 1, "tokens": 901},
        "901 tokens",
        "900",
    ),
    ([Rate(10, per=1)], {"requests": 2**53 - 1}, f"{2**53 - 1} requests", "10"),
]


@pytest.fixture
def limiter(nowhere: str) -> Limiter:
    return Limiter("api", *LIMITS, store=nowhere)


# Costs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cost", [None, *NO_INT], ids=shown)
def test_a_cost_that_is_no_int_is_refused(way: str, cost: Any, limiter: Limiter) -> None:
    """T7, F19."""
    for unit, units in (("", {}), ("tokens=", {"tokens": cost})):
        with pytest.raises(TypeError) as caught:
            WAYS[way](limiter, **units) if units else WAYS[way](limiter, cost)
        assert_sentence(caught.value, f"acquire({unit}{shown(cost)})", "limiter 'api'", "int")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cost", NO_COUNT, ids=shown)
def test_a_cost_below_1_or_above_the_numbers_of_lua_is_refused(
    way: str, cost: int, limiter: Limiter
) -> None:
    """T7, F19."""
    for unit, units in (("", {}), ("tokens=", {"tokens": cost})):
        with pytest.raises(ValueError, match="at least 1 and below") as caught:
            WAYS[way](limiter, **units) if units else WAYS[way](limiter, cost)
        assert not isinstance(caught.value, CostExceedsCapacityError)
        assert_sentence(caught.value, f"acquire({unit}{shown(cost)})", "limiter 'api'")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "unit",
    ["words", "token", "permit", "Tokens", "to kens", "🎟", "", "cost_", "u" * 10**6],
    ids=shown,
)
def test_a_unit_that_no_limit_counts_is_refused(way: str, unit: str, limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="none of its limits counts") as caught:
        WAYS[way](limiter, **{unit: 1})
    assert_sentence(caught.value, "limiter 'api'", "mb, permits, requests, tokens")


class AnyCase(str):
    """A text that equals others of another case."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_is_the_text_that_it_has_and_not_one_that_it_equals(
    way: str, limiter: Limiter
) -> None:
    """S1: a unit that passed the check by its own comparison would count nothing."""
    unit: Any = AnyCase("TOKENS")
    with pytest.raises(ValueError, match="none of its limits counts 'TOKENS'"):
        WAYS[way](limiter, **{unit: 1})


@pytest.mark.parametrize("way", WAYS)
def test_two_numbers_of_requests_are_refused(way: str, limiter: Limiter) -> None:
    with pytest.raises(TypeError, match="two numbers of requests") as caught:
        WAYS[way](limiter, 2, requests=5)
    assert_sentence(caught.value, "acquire(2, requests=5)", "limiter 'api'", "write one")


def test_a_cost_needs_a_limit_that_counts_requests(nowhere: str) -> None:
    """A Concurrency counts permits, one for each acquire: acquire(3) is not quietly one permit."""
    with pytest.raises(ValueError, match="'requests'") as caught:
        Limiter("api", Concurrency(5), store=nowhere).acquire(3)
    assert_sentence(caught.value, "acquire(3)", "permits")


@pytest.mark.parametrize(("limits", "cost", "asked", "most"), NEVER, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_cost_above_the_capacity_raises_the_error_for_never_at_once(
    way: str, limits: list[Any], cost: dict[str, int], asked: str, most: str, nowhere: str
) -> None:
    """T7: said at once, by the type for never, with the number, the limit and the way out; without
    a word to the server.
    """
    with pytest.raises(CostExceedsCapacityError) as caught:
        WAYS[way](Limiter("api", *limits, store=nowhere), **cost)

    assert not isinstance(caught.value, MaxSleepExceededError)
    assert not hasattr(caught.value, "retry_after")
    assert_sentence(caught.value, "limiter 'api'", asked, most, "never")


@pytest.mark.parametrize("max_sleep", [None, 0, 1e-6, 60])
def test_a_cost_above_the_capacity_is_refused_with_any_max_sleep(
    max_sleep: float | None, nowhere: str
) -> None:
    with pytest.raises(CostExceedsCapacityError):
        Limiter("api", Rate(10, per=1), store=nowhere, max_sleep=5).acquire(11, max_sleep=max_sleep)


# Maximum waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAITING)
@pytest.mark.parametrize("value", NO_NUMBER, ids=shown)
def test_an_acquire_refuses_a_max_sleep_that_is_no_number(
    way: str, value: Any, limiter: Limiter
) -> None:
    with pytest.raises(TypeError) as caught:
        WAYS[way](limiter, max_sleep=value)
    assert_sentence(caught.value, f"acquire(max_sleep={shown(value)})", "None")


@pytest.mark.parametrize("way", WAITING)
@pytest.mark.parametrize("value", NO_TIME, ids=shown)
def test_a_max_sleep_is_finite_and_within_reason(way: str, value: float, limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="max_sleep") as caught:
        WAYS[way](limiter, max_sleep=value)
    assert_sentence(caught.value, f"acquire(max_sleep={shown(value)})", "None", "try_acquire")


@pytest.mark.parametrize("way", ["try_acquire", "atry_acquire"])
def test_try_acquire_refuses_a_max_sleep_and_names_acquire(way: str, limiter: Limiter) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        WAYS[way](limiter, max_sleep=1)
    assert_sentence(caught.value, "max_sleep=1", "limiter 'api'", "acquire")
    assert "unit=" not in str(caught.value)  # that would be refused in its turn


# The effects of a refused acquire -----------------------------------------------------------------


@told
async def test_bad_input_charges_nothing(world: World) -> None:
    """T8: the status of every limit is unchanged after every kind of bad acquire."""
    limiter = world.limiter(*LIMITS)
    bad: list[dict[str, Any]] = [
        {"tokens": 0},
        {"tokens": 1, "mb": True},
        {"tokens": 1, "words": 1},
        {"tokens": 1, "mb": 65},
    ]

    for units in bad:
        with pytest.raises((TypeError, ValueError)):
            limiter.acquire(2, **units)
        with pytest.raises((TypeError, ValueError)):
            await limiter.atry_acquire(2, **units)

    assert used(await soon(limiter.astatus())) == [0, 0, 0, 0]


# Callbacks ----------------------------------------------------------------------------------------


async def a_coroutine(its: object) -> None:
    """A callback that cannot be called to its end."""


async def an_async_generator(its: object) -> AsyncIterator[None]:
    """As above."""
    yield


def a_generator(its: object) -> Iterator[None]:
    """As above."""
    yield


class AsyncCall:
    async def __call__(self, its: object) -> None:
        """As above."""


@pytest.mark.parametrize("way", ["Limiter", *WAITING])
@pytest.mark.parametrize("value", [5, "print", True, [print], Hostile()], ids=shown)
def test_an_on_wait_that_cannot_be_called_is_refused(
    way: str, value: Any, limiter: Limiter, nowhere: str
) -> None:
    with pytest.raises(TypeError) as caught:
        Limiter("api", *LIMITS, store=nowhere, on_wait=value) if way == "Limiter" else WAYS[way](
            limiter, on_wait=value
        )
    call = "Limiter" if way == "Limiter" else "acquire"
    assert_sentence(caught.value, f"{call}(on_wait={shown(value)})", "function of one argument")


@pytest.mark.parametrize(
    "value",
    [a_coroutine, partial(a_coroutine), AsyncCall(), an_async_generator, partial(a_generator)],
)
def test_an_on_wait_that_would_need_an_await_is_refused(value: Any, limiter: Limiter) -> None:
    with pytest.raises(TypeError) as caught:
        limiter.acquire(on_wait=value)
    assert_sentence(caught.value, "acquire(on_wait=", "does not await", "plain function")


@pytest.mark.parametrize("way", ["try_acquire", "atry_acquire"])
@pytest.mark.parametrize("option", ["max_sleep", "on_wait"])
def test_try_acquire_refuses_the_options_of_waiting_even_as_none(
    way: str, option: str, limiter: Limiter
) -> None:
    with pytest.raises(TypeError) as caught:
        WAYS[way](limiter, **{option: None})
    assert_sentence(caught.value, f"acquire({option}=None)", "a try never waits")


# Settling -----------------------------------------------------------------------------------------

UNSETTLED: list[tuple[type[Exception], dict[str, Any], str]] = [
    *[
        (TypeError, {"tokens": value}, f"settle(tokens={shown(value)})")
        for value in [None, *NO_INT]
    ],
    *[
        (ValueError, {"tokens": value}, f"settle(tokens={shown(value)})")
        for value in NO_COUNT
        if value
    ],
    (ValueError, {"words": 1}, "settle(words=1)"),
    (ValueError, {"mb": 1}, "settle(mb=1)"),
    (ValueError, {"permits": 0}, "settle(permits=0)"),
    (ValueError, {"tokens": 1, "words": 1}, "settle(words=1)"),
    (TypeError, {"tokens": 1, "requests": 1.0}, "settle(requests=1.0)"),
]


@pytest.fixture(scope="module")
def permit() -> Permit:
    """A permit of a limiter with every kind of unit, in this process."""
    held = Limiter("bad settlements", *LIMITS).acquire_sync(2, tokens=100, mb=1)
    held.release()
    return held


@pytest.mark.parametrize(
    ("error", "actual", "call"),
    UNSETTLED,
    ids=lambda value: shown(value) if isinstance(value, dict) else "",
)
def test_a_settlement_is_of_whole_numbers_and_known_rates(
    error: type[Exception], actual: dict[str, Any], call: str, permit: Permit
) -> None:
    with pytest.raises(error) as caught:
        permit.settle(**actual)
    assert_sentence(caught.value, call, "limiter 'bad settlements'")


@told
async def test_a_bad_settlement_changes_nothing(world: World) -> None:
    """T8: nothing of it, not even the part that was fine; and the right one is still possible."""
    limiter = world.limiter(
        Rate(10, per=HOUR),
        Rate(1000, per=HOUR, unit="tokens"),
        Concurrency(64, unit="mb"),
        Concurrency(5),
    )
    permit = await limiter.acquire(2, tokens=100, mb=1)

    for error, actual, _ in UNSETTLED:
        with pytest.raises(error):
            permit.settle(**{"requests": 1, **actual})

    assert used(await soon(limiter.astatus())) == [2, 100, 1, 1]
    permit.settle(tokens=40)
    assert used(await soon(limiter.astatus())) == [2, 40, 1, 1]
    permit.release()


# Arguments of other libraries ---------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("argument", "value", "way_out"),
    [
        ("timeout", 3, "max_sleep"),
        ("timeout", 2.5, "max_sleep"),
        ("blocking", False, "try_acquire"),
    ],
)
def test_the_error_for_another_librarys_argument_names_headgates(
    way: str, argument: str, value: Any, way_out: str, limiter: Limiter
) -> None:
    with pytest.raises(TypeError) as caught:
        WAYS[way](limiter, **{argument: value})
    assert_sentence(caught.value, f"acquire({argument}={value})", "limiter 'api'", way_out)


def test_a_unit_may_be_called_as_another_librarys_argument(name: str) -> None:
    limiter = Limiter(name, Rate(5, per=1, unit="timeout"))
    assert limiter.try_acquire(timeout=5)
    assert not limiter.try_acquire(timeout=1)


def test_a_limiter_does_not_list_its_keys(limiter: Limiter) -> None:
    """Without this, Python would look for limiter[0], limiter[1] and so on."""
    way_out = 'Write limiter["key"] for the limiter of one key'
    with pytest.raises(TypeError) as asked:
        "key" in limiter  # noqa: B015
    assert_sentence(asked.value, "'key' in Limiter('api')", "does not list its keys", way_out)
    with pytest.raises(TypeError) as iterated:
        iter(limiter)
    assert_sentence(
        iterated.value, "iteration over Limiter('api')", "does not list its keys", way_out
    )


def test_a_class_cannot_be_decorated(limiter: Limiter) -> None:
    class Client:
        pass

    with pytest.raises(
        TypeError,
        match=r"Limiter 'api' decorates functions, not the class Client.*decorate its methods",
    ):
        limiter(Client)
