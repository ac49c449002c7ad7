"""TokenBucket: a burst of its capacity, then `refill_amount` every `refill_frequency` seconds, in
order.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest

from headgate import MaxSleepExceededError, TokenBucket
from tests.world import HOUR, World, told


def test_the_positional_arguments_of_a_bucket_stay_the_same() -> None:
    """Names, order and defaults of the positional arguments."""
    parameters = inspect.signature(TokenBucket).parameters.values()

    assert [
        (each.name, each.default) for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD
    ] == [
        ("name", inspect.Parameter.empty),
        ("capacity", inspect.Parameter.empty),
        ("refill_frequency", inspect.Parameter.empty),
        ("refill_amount", inspect.Parameter.empty),
        ("redis_url", None),
        ("max_sleep", None),
        ("connection_pool_size", None),
    ]


def test_a_bucket_is_made_by_position_or_by_keyword(name: str, redis_url: str) -> None:
    """The order is that of self-limiters 0.4."""
    by_position = TokenBucket(name, 10, 0.5, 2, redis_url, 60, 15, initial_tokens=3)
    by_keyword = TokenBucket(
        name=name,
        capacity=10,
        refill_frequency=0.5,
        refill_amount=2,
        redis_url=redis_url,
        max_sleep=60,
        initial_tokens=3,
    )

    for each in (by_position, by_keyword):
        seen = (
            each.name,
            each.capacity,
            each.refill_amount,
            each.refill_frequency,
            each.max_sleep,
            each.initial_tokens,
        )
        assert seen == (name, 10, 2, 0.5, 60, 3)
        assert name in repr(each)


async def entries(world: World, bucket: TokenBucket, count: int) -> list[tuple[int, float]]:
    """The callers and their moments, of `count` callers that come at once."""
    passed: list[tuple[int, float]] = []
    start = world.now()

    async def visit(number: int) -> None:
        async with bucket:
            passed.append((number, (world.now() - start) / world.beat))

    await asyncio.gather(*(visit(number) for number in range(count)))
    return passed


def assert_passed(world: World, passed: list[tuple[int, float]], beats: list[int]) -> None:
    """In order, each at its beat: exactly in virtual time, otherwise not before it and not much
    later.
    """
    assert [number for number, _ in passed] == list(range(len(beats)))
    for (_, seen), wanted in zip(passed, beats, strict=True):
        assert wanted - 1e-6 <= seen <= wanted + 1e-6 + world.slack / world.beat


@told
async def test_a_bucket_passes_a_burst_and_then_whole_refills(world: World) -> None:
    """T1, T3: three at once, then two with every refill."""
    bucket = TokenBucket(world.name, 3, world.beat, 2, **world.place)

    assert_passed(world, await entries(world, bucket, 9), [0, 0, 0, 1, 1, 2, 2, 3, 3])


@told
async def test_a_bucket_for_one_token_passes_one_caller_at_each_refill(world: World) -> None:
    """T2: the bucket of the documentation: one token, one refill, and a queue that moves once in
    `refill_frequency`.
    """
    bucket = TokenBucket(
        name=world.name, capacity=1, refill_amount=1, refill_frequency=world.beat, **world.place
    )

    assert_passed(world, await entries(world, bucket, 6), [0, 1, 2, 3, 4, 5])


@told
async def test_a_refill_beyond_the_capacity_is_lost(world: World) -> None:
    bucket = TokenBucket(world.name, 2, world.beat, 10, **world.place)

    assert_passed(world, await entries(world, bucket, 6), [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("initial", "beats"), [(0, [1, 2, 3]), (1, [0, 1, 2]), (2, [0, 0, 1]), (None, [0, 0, 0])]
)
@told
async def test_a_new_bucket_holds_its_initial_tokens(
    world: World, initial: int | None, beats: list[int]
) -> None:
    bucket = TokenBucket(world.name, 3, world.beat, 1, initial_tokens=initial, **world.place)

    assert_passed(world, await entries(world, bucket, 3), beats)


@told
async def test_a_second_instance_does_not_fill_the_bucket_again(world: World) -> None:
    """All instances of one name share one bucket; the initial tokens are the first one's."""
    for _ in range(2):
        async with TokenBucket(
            world.name, 3, HOUR, 1, max_sleep=world.beat, initial_tokens=2, **world.place
        ):
            pass

    with pytest.raises(MaxSleepExceededError):
        async with TokenBucket(
            world.name, 3, HOUR, 1, max_sleep=world.beat, initial_tokens=2, **world.place
        ):
            pass


@told
async def test_as_many_instances_as_callers_are_one_bucket(world: World) -> None:
    """S6, T3: in the order of the callers, through any of the instances."""
    passed: list[tuple[int, float]] = []
    start = world.now()

    async def visit(number: int) -> None:
        async with TokenBucket(world.name, 2, world.beat, 2, **world.place):
            passed.append((number, (world.now() - start) / world.beat))

    await asyncio.gather(*(visit(number) for number in range(7)))

    assert_passed(world, passed, [0, 0, 1, 1, 2, 2, 3])


def test_a_bucket_without_a_store_lives_in_this_process(name: str) -> None:
    with TokenBucket(name, 1, HOUR, 1):
        pass

    with (
        pytest.raises(MaxSleepExceededError),
        TokenBucket(name, 1, HOUR, 1, max_sleep=1, store="memory://"),
    ):
        pass


@told
async def test_a_waiter_that_gives_up_leaves_its_tokens_to_those_behind(world: World) -> None:
    """T5: six wait for one token a beat, every other one gives up: the rest take half as long."""
    bucket = TokenBucket(world.name, 1, 2 * world.beat, 1, initial_tokens=0, **world.place)
    passed: list[tuple[int, float]] = []
    start = world.now()

    async def visit(number: int) -> None:
        async with bucket:
            passed.append((number, (world.now() - start) / world.beat))

    tasks = [asyncio.create_task(visit(number)) for number in range(6)]
    await asyncio.sleep(world.beat / 2)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)

    assert [number for number, _ in passed] == [1, 3, 5]
    for (_, seen), beat in zip(passed, [2, 4, 6], strict=True):
        assert beat - 1e-6 <= seen <= beat + 1e-6 + world.slack / world.beat


@told
async def test_a_bucket_can_be_entered_again_and_again(world: World) -> None:
    bucket = TokenBucket(world.name, 100, HOUR, 1, **world.place)
    rounds = 0

    while rounds < 50:
        async with bucket:
            rounds += 1

    assert rounds == 50


@told
async def test_a_wait_beyond_max_sleep_is_refused_at_once_and_consumes_nothing(
    world: World,
) -> None:
    """T8: the wait is known; twenty refusals later the next token is still the next caller's, at
    its moment.
    """
    bucket = TokenBucket(world.name, 1, 12 * world.beat, 1, max_sleep=world.beat, **world.place)
    patient = TokenBucket(world.name, 1, 12 * world.beat, 1, **world.place)
    asked = world.now()
    async with bucket:
        start = world.now()

    for _ in range(20):
        with pytest.raises(MaxSleepExceededError) as refused:
            async with bucket:
                pass
        if world.now() - start > world.beat:
            break  # a slow machine: by now the wait is short enough

    assert world.now() - start <= world.slack
    assert 0 < refused.value.retry_after <= 12 * world.beat
    async with patient:
        assert world.now() - asked >= 12 * world.beat - 1e-6
        assert world.now() - start <= 12 * world.beat + world.slack


@told
async def test_max_sleep_counts_the_waiters_before_the_caller(world: World) -> None:
    """Three wait one, two and three hours. A fourth, which would wait four and is willing to wait
    three, is refused.
    """
    waiters = [
        asyncio.create_task(_visit(TokenBucket(world.name, 1, HOUR, 1, **world.place)))
        for _ in range(4)
    ]
    await asyncio.sleep(0)

    with pytest.raises(MaxSleepExceededError) as refused:
        async with TokenBucket(world.name, 1, HOUR, 1, max_sleep=3.5 * HOUR, **world.place):
            pass

    assert refused.value.retry_after == pytest.approx(4 * HOUR, abs=world.slack or 0.01)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)


@pytest.mark.parametrize("max_sleep", [None, 0, 0.0])
@told
async def test_a_caller_of_a_bucket_without_max_sleep_waits_as_long_as_it_takes(
    world: World, max_sleep: float | None
) -> None:
    bucket = TokenBucket(
        world.name, 1, HOUR if world.virtual else world.beat, 1, max_sleep=max_sleep, **world.place
    )

    await _visit(bucket)
    await _visit(bucket)


@told
async def test_a_caller_that_leaves_gives_no_token_back(world: World) -> None:
    bucket = TokenBucket(world.name, 1, HOUR, 1, max_sleep=world.beat, **world.place)
    with pytest.raises(ZeroDivisionError):
        async with bucket:
            1 / 0  # noqa: B018  # an error of the caller, and nothing more

    with pytest.raises(MaxSleepExceededError):
        await _visit(bucket)


def test_threads_use_a_bucket_with_a_plain_with(store: object, name: str) -> None:
    bucket = TokenBucket(name, 2, HOUR, 1, max_sleep=1, store=store)
    with bucket, bucket:
        pass

    with pytest.raises(MaxSleepExceededError), bucket:
        pass


async def _visit(bucket: TokenBucket) -> None:
    async with bucket:
        pass
