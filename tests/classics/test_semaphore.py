"""Semaphore: so many at once, first come, first served, keyword for keyword as it has
always been.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
import redis
import redis.asyncio

from headgate import MaxSleepExceededError, QueueFullError, Semaphore, TokenBucket
from headgate.internals import queue_of
from tests.local_waiters import declared
from tests.processes import running
from tests.servers import Server
from tests.world import HOUR, LONG, World, soon, told, waiting


def test_the_positional_arguments_of_a_semaphore_stay_the_same() -> None:
    """Names, order and defaults of the positional arguments."""
    parameters = inspect.signature(Semaphore).parameters.values()

    assert [
        (each.name, each.default) for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD
    ] == [
        ("name", inspect.Parameter.empty),
        ("capacity", inspect.Parameter.empty),
        ("max_sleep", None),
        ("expiry", 30),
        ("redis_url", None),
        ("connection_pool_size", None),
    ]


def test_a_semaphore_is_made_by_position_or_by_keyword(name: str, redis_url: str) -> None:
    """The order is that of self-limiters 0.4."""
    by_position = Semaphore(name, 5, 60, 20, redis_url, 15, max_position=3)
    by_keyword = Semaphore(
        name=name, capacity=5, max_sleep=60, expiry=20, redis_url=redis_url, max_position=3
    )

    for each in (by_position, by_keyword):
        seen = (each.name, each.capacity, each.max_sleep, each.expiry, each.max_position)
        assert seen == (name, 5, 60, 20, 3)
        assert name in repr(each)


@told
async def test_a_semaphore_never_exceeds_its_capacity_and_keeps_the_order(world: World) -> None:
    """S1, S6: twelve callers, three at once, in the order of arrival."""
    semaphore = Semaphore(world.name, 3, **world.place)
    inside: set[int] = set()
    order: list[int] = []

    async def visit(number: int) -> None:
        async with semaphore:
            order.append(number)
            inside.add(number)
            assert len(inside) <= 3
            await asyncio.sleep(world.beat / 4)
            inside.remove(number)

    await asyncio.gather(*(visit(number) for number in range(12)))

    assert order == list(range(12))


@told
async def test_a_semaphore_can_be_entered_again_and_again(world: World) -> None:
    """`while True: async with queue: ...`, as the documentation of the original has it."""
    queue = Semaphore(name=world.name, capacity=1, max_sleep=LONG, **world.place)
    rounds = 0

    while True:
        async with queue:
            rounds += 1
            if rounds == 20:
                break

    assert rounds == 20


@told
async def test_all_instances_of_one_name_are_one_semaphore(world: World) -> None:
    """As many objects as there are callers, and still one capacity and one queue."""
    order: list[int] = []

    async def visit(number: int) -> None:
        async with Semaphore(world.name, 1, **world.place):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(visit(number) for number in range(10)))

    assert order == list(range(10))


def test_processes_get_their_turns_in_the_order_of_arrival(name: str, redis_url: str) -> None:
    """S6: given two processes that ask one after the other, when the permit comes free, then the
    first has it, then the second.
    """

    async def story() -> None:
        semaphore = Semaphore(name, 1, redis_url=redis_url)
        await semaphore.__aenter__()
        with running("hold", redis_url, name, 1, 30) as early:
            assert await early.said() == "asks"
            await waiting(queue_of(semaphore), 1)
            with running("hold", redis_url, name, 1, 30) as late:
                assert await late.said() == "asks"
                await waiting(queue_of(semaphore), 2)

                await semaphore.__aexit__(None, None, None)
                assert await early.said() == "inside"
                await waiting(queue_of(semaphore), 1)
                early.tell("leave")
                assert [await early.said(), await late.said()] == ["left", "inside"]
                late.tell("leave")

    asyncio.run(story())


def test_a_semaphore_without_a_store_lives_in_this_process(name: str) -> None:
    with Semaphore(name, 1):
        assert queue_of(declared(Semaphore(name, 1, store="memory://"))) is queue_of(
            declared(Semaphore(name, 1))
        )
        with pytest.raises(MaxSleepExceededError):
            asyncio.run(_visit(Semaphore(name, 1, max_sleep=1e-6)))


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis, str])
async def test_the_store_of_a_semaphore_may_be_a_url_or_a_client(
    kind: Any, name: str, redis_server: Server
) -> None:
    """The user's own client of either kind, or a URL: all lead to one state."""
    redis_url = redis_server.user_url
    where = redis_url if kind is str else kind.from_url(redis_url)
    async with Semaphore(name, 1, redis_url=redis_url):
        with pytest.raises(MaxSleepExceededError):
            await _visit(Semaphore(name, 1, max_sleep=0.001, store=where))


@told
async def test_other_names_are_other_semaphores(world: World) -> None:
    async with Semaphore(world.name, 1, **world.place):
        await soon(_visit(Semaphore(world.name + "2", 1, **world.place)))


@told
async def test_a_bucket_of_the_same_name_is_something_else(world: World) -> None:
    async with (
        Semaphore(world.name, 1, **world.place),
        TokenBucket(world.name, 1, HOUR, 1, **world.place),
    ):
        assert not await _passes(Semaphore(world.name, 1, max_sleep=world.beat, **world.place))
        assert not await _passes(
            TokenBucket(world.name, 1, HOUR, 1, max_sleep=world.beat, **world.place)
        )


@pytest.mark.parametrize("max_sleep", [None, 0, 0.0])
@told
async def test_a_caller_of_a_semaphore_without_max_sleep_waits_as_long_as_it_takes(
    world: World, max_sleep: float | None
) -> None:
    """None and 0 both say so."""
    semaphore = Semaphore(world.name, 1, max_sleep=max_sleep, **world.place)
    await semaphore.__aenter__()
    waiter = asyncio.create_task(_visit(semaphore))
    done, _ = await asyncio.wait([waiter], timeout=HOUR if world.virtual else world.beat)

    assert not done
    await semaphore.__aexit__(None, None, None)
    await soon(waiter)


@told
async def test_a_wait_longer_than_max_sleep_ends_with_an_error(world: World) -> None:
    semaphore = Semaphore(world.name, 1, max_sleep=world.beat, **world.place)

    async with semaphore:
        start = world.now()
        with pytest.raises(MaxSleepExceededError) as refused:
            await _visit(semaphore)

        assert world.beat - 1e-9 <= world.now() - start <= world.beat + world.slack
        assert "max_sleep" in str(refused.value)

    await soon(_visit(semaphore))  # and the place in the queue went with it


@told
async def test_a_wait_shorter_than_max_sleep_is_waited(world: World) -> None:
    semaphore = Semaphore(world.name, 1, max_sleep=HOUR, **world.place)

    async def stay() -> None:
        async with semaphore:
            await asyncio.sleep(world.beat)

    await asyncio.gather(stay(), stay(), stay())


@pytest.mark.parametrize("position", [0, 1, 2])
@told
async def test_max_position_refuses_at_once_a_caller_with_more_waiters_before_it(
    world: World, position: int
) -> None:
    """With 0 before the caller it may wait; with more than `max_position` it is refused
    immediately.
    """
    semaphore = Semaphore(world.name, 1, max_position=position, **world.place)
    await semaphore.__aenter__()
    # As many as may wait: with 0, 1, ... `position` others before them.
    waiters = [asyncio.create_task(_visit(semaphore)) for _ in range(position + 1)]
    await asyncio.sleep(0)
    start = world.now()

    with pytest.raises(QueueFullError) as refused:
        await _visit(semaphore)

    assert isinstance(refused.value, MaxSleepExceededError)  # one handler catches both
    assert world.now() - start <= world.slack
    assert not any(waiter.done() for waiter in waiters)
    await semaphore.__aexit__(None, None, None)
    await soon(asyncio.gather(*waiters))


@told
async def test_an_error_in_the_body_gives_the_permit_back(world: World) -> None:
    """F6."""
    semaphore = Semaphore(world.name, 1, **world.place)

    with pytest.raises(ZeroDivisionError):
        async with semaphore:
            1 / 0  # noqa: B018  # an error of the caller, and nothing more

    await soon(_visit(semaphore))


@told
async def test_a_waiter_that_gives_up_is_forgotten(world: World) -> None:
    semaphore = Semaphore(world.name, 1, **world.place)
    async with semaphore:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(world.beat / 2):
                await _visit(semaphore)

    await soon(_visit(semaphore))


def test_threads_use_a_semaphore_with_a_plain_with(store: object, name: str) -> None:
    semaphore = Semaphore(name, 2, store=store)
    inside: list[int] = []
    most: list[int] = []

    def visit() -> None:
        for _ in range(5):
            with semaphore:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=visit) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(most) == 25
    assert max(most) <= 2


@told
async def test_a_place_in_the_queue_that_was_given_up_is_free_again(world: World) -> None:
    """`max_position` counts the present waiters, not former ones; a refusal counts for none."""
    semaphore = Semaphore(world.name, 1, max_position=0, **world.place)
    await semaphore.__aenter__()
    for _ in range(3):
        waiter = asyncio.create_task(_visit(semaphore))
        await waiting(queue_of(semaphore), 1)
        with pytest.raises(QueueFullError):
            await _visit(semaphore)
        waiter.cancel()
        await asyncio.wait([waiter])
        await waiting(queue_of(semaphore), 0)

    await semaphore.__aexit__(None, None, None)
    await soon(_visit(semaphore))


async def _visit(entrance: Semaphore) -> None:
    async with entrance:
        pass


async def _passes(entrance: Semaphore | TokenBucket) -> bool:
    try:
        async with entrance:
            return True
    except MaxSleepExceededError:
        return False
