"""`@limiter` on any callable: a permit before the call, for as long as it runs, released however it
ends (F6).
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import AsyncIterator, Iterator

import pytest

from headgate import Concurrency, Limiter, Rate
from tests.world import HOUR, World, at_rest, held, told, used


def at_most_one(name: str, store: object) -> Limiter:
    return Limiter(name, Concurrency(1), Rate(1000, per=1000 * HOUR), store=store)


def back(limiter: Limiter) -> bool:
    """Whether the permit is free again: a release without waiting takes a round trip."""
    limiter.acquire_sync(max_sleep=5).release()
    return True


# Functions ----------------------------------------------------------------------------------------


def test_a_function_runs_with_a_permit(store: object, name: str) -> None:
    limiter = at_most_one(name, store)

    @limiter
    def add(one: int, *, other: int = 0) -> int:
        """Sums."""
        assert held(limiter.status()) == 1
        return one + other

    assert add(1, other=2) == 3
    assert add(1) == 1
    assert (add.__name__, add.__doc__) == ("add", "Sums.")
    assert back(limiter)


def test_a_function_that_fails_gives_its_permit_back(store: object, name: str) -> None:
    limiter = at_most_one(name, store)

    @limiter
    def fail() -> None:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()

    assert back(limiter)


@told
async def test_a_coroutine_function_runs_with_a_permit(world: World) -> None:
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def add(one: int, *, other: int = 0) -> int:
        assert held(await limiter.astatus()) == 1
        return one + other

    assert inspect.iscoroutinefunction(add)
    assert await add(1, other=2) == 3
    status = await at_rest(limiter)
    assert used(status)[1] == 1


@told
async def test_a_coroutine_that_fails_gives_its_permit_back(world: World) -> None:
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    await at_rest(limiter)


@told
async def test_no_permit_is_taken_before_a_coroutine_is_awaited(world: World) -> None:
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def call() -> None: ...

    pending = call()
    assert used(await limiter.astatus()) == [0, 0]
    await pending
    assert used(await at_rest(limiter)) == [0, 1]


def test_methods_and_partials_and_callable_objects_can_be_decorated(
    store: object, name: str
) -> None:
    limiter = at_most_one(name, store)

    class Client:
        @limiter
        def method(self) -> object:
            return self

        @staticmethod
        @limiter
        def static(number: int) -> int:
            return number

        @classmethod
        @limiter
        def made(cls) -> Client:
            return cls()

        def __call__(self, number: int) -> int:
            return -number

    client = Client()
    assert client.method() is client
    assert Client.static(2) == 2
    assert isinstance(Client.made(), Client)
    assert limiter(client)(3) == -3
    assert limiter(functools.partial(divmod, 9))(2) == (4, 1)
    assert limiter.status().limits[1].used == 5


@told
async def test_a_partial_of_a_coroutine_function_is_awaited_with_its_permit(world: World) -> None:
    """The permit is held while the coroutine runs, not only while it is made."""
    limiter = at_most_one(world.name, world.store)

    async def work(number: int) -> int:
        return number if held(await limiter.astatus()) == 1 else -1

    class Worker:
        async def __call__(self, number: int) -> int:
            return await work(number)

    assert await limiter(functools.partial(work, 5))() == 5
    assert await limiter(Worker())(6) == 6
    await at_rest(limiter)


def test_an_object_that_is_not_callable_cannot_be_decorated(store: object, name: str) -> None:
    with pytest.raises(TypeError, match="decorates"):
        at_most_one(name, store)(3)  # type: ignore[call-overload]  # that is the mistake


# Generators ---------------------------------------------------------------------------------------


def test_a_generator_holds_its_permit_from_the_first_step_to_the_last(
    store: object, name: str
) -> None:
    limiter = at_most_one(name, store)

    @limiter
    def echo(first: str) -> Iterator[str]:
        received = yield first
        while received != "stop":
            try:
                received = yield received
            except KeyError as error:
                received = yield f"caught {error.args[0]}"
        return "the end"

    assert inspect.isgeneratorfunction(echo)
    steps = echo("one")
    assert held(limiter.status()) == 0  # nothing runs before the first step
    assert next(steps) == "one"
    assert held(limiter.status()) == 1
    assert steps.send("two") == "two"
    assert steps.throw(KeyError("three")) == "caught three"
    with pytest.raises(StopIteration) as stopped:
        steps.send("stop")
    assert stopped.value.value == "the end"
    assert back(limiter)


def test_a_generator_that_is_closed_gives_its_permit_back(store: object, name: str) -> None:
    limiter = at_most_one(name, store)
    cleaned = []

    @limiter
    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            cleaned.append(held(limiter.status()))

    steps = endless()
    next(steps)

    steps.close()

    assert cleaned == [1]  # the permit was still held while the body cleaned up
    assert back(limiter)


def test_a_generator_that_is_dropped_gives_its_permit_back(store: object, name: str) -> None:
    limiter = at_most_one(name, store)

    @limiter
    def endless() -> Iterator[int]:
        while True:
            yield 1

    for _ in endless():
        break
    gc.collect()

    assert back(limiter)


def test_a_generator_that_fails_gives_its_permit_back(store: object, name: str) -> None:
    limiter = at_most_one(name, store)

    @limiter
    def fail() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(fail())

    assert back(limiter)


@told
async def test_an_async_generator_holds_its_permit_from_the_first_step_to_the_last(
    world: World,
) -> None:
    """`asend` and `athrow` reach the body, and its answers come out."""
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def echo(first: str) -> AsyncIterator[str]:
        received = yield first
        while received != "stop":
            try:
                received = yield received
            except KeyError as error:
                received = yield f"caught {error.args[0]}"

    assert inspect.isasyncgenfunction(echo)
    steps = echo("one")
    assert held(await limiter.astatus()) == 0
    assert await anext(steps) == "one"
    assert held(await limiter.astatus()) == 1
    assert await steps.asend("two") == "two"
    assert await steps.athrow(KeyError("three")) == "caught three"
    with pytest.raises(StopAsyncIteration):
        await steps.asend("stop")
    await at_rest(limiter)


@told
async def test_an_async_generator_that_is_closed_gives_its_permit_back(world: World) -> None:
    """When `aclose` returns, the body has cleaned up, with the permit still held."""
    limiter = at_most_one(world.name, world.store)
    cleaned = []

    @limiter
    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            cleaned.append(held(await limiter.astatus()))

    steps = endless()
    await anext(steps)

    await steps.aclose()

    assert cleaned == [1]
    await at_rest(limiter)


@told
async def test_an_error_thrown_into_an_async_generator_comes_out_of_it(world: World) -> None:
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    steps = numbers()
    await anext(steps)

    with pytest.raises(KeyError, match="thrown"):
        await steps.athrow(KeyError("thrown"))

    await at_rest(limiter)


@told
async def test_a_loop_over_an_async_generator_sees_every_item(world: World) -> None:
    limiter = at_most_one(world.name, world.store)

    @limiter
    async def numbers(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    assert [number async for number in numbers(5)] == [0, 1, 2, 3, 4]
    assert used(await at_rest(limiter)) == [0, 1]
