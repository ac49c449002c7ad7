"""The watch over a body and other tasks that cancel it or watch over it: nothing swallowed, nothing
doubled (F8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from headgate import LeaseLostError, Limiter
from tests.leases import LEASE, Leases, run

# Cancellations of others --------------------------------------------------------------------------


def test_an_error_of_the_body_takes_precedence_over_the_loss(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """Whether it fails by itself after the loss or while it is cancelled for it; the task is as
    good as before.
    """

    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            async with block():
                leases.clock.jump(2 * LEASE)
                raise ZeroDivisionError
        with pytest.raises(KeyError):
            async with block():
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    raise KeyError from None
        await asyncio.sleep(1.0)

    run(leases, story())


def test_a_foreign_cancellation_stays_a_cancellation(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F8: cancelled before the loss, in the moment of the loss on either side of it, and after it
    in its clean-up: cancelled.
    """

    async def visit(lingers: float) -> None:
        async with block():
            try:
                await asyncio.sleep(3600)
            finally:
                if lingers:
                    await asyncio.sleep(lingers)

    async def story(order: str, lingers: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(visit(lingers))
        await asyncio.sleep(1.0)
        deeds: list[Callable[[], Any]] = [task.cancel, leases.forget]
        for deed in deeds if order == "before" else reversed(deeds):
            deed()
            if order == "later":
                await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert task.cancelling() == 1
        assert loop.time() < LEASE

    for order in ("before", "after"):
        run(leases, story(order, 0.0))
        run(leases, story(order, 2.0))
    run(leases, story("later", 2.0))


def test_a_block_in_the_clean_up_of_a_cancelled_task_raises_for_its_own_loss(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F8: cancellations of the task from before the block have been raised already."""

    async def visit() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            async with block():
                await asyncio.sleep(3600)

    async def story() -> None:
        task = asyncio.create_task(visit())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(LeaseLostError):
            await task

    run(leases, story())


def test_a_timeout_at_the_moment_of_the_loss_stays_a_timeout(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F8: the outer one is neither swallowed nor doubled; one inside of the block is, with all of
    the block, ended by the loss.
    """

    async def story() -> None:
        loop = asyncio.get_running_loop()
        for outer, inner, error in (
            (1.0, 3600.0, TimeoutError),
            (3600.0, 1.0, LeaseLostError),
            (3600.0, 3600.0, LeaseLostError),
        ):
            loop.call_later(1.0, leases.forget)
            with pytest.raises(error):
                async with asyncio.timeout(outer), block(), asyncio.timeout(inner):
                    await asyncio.sleep(3600)
            await asyncio.sleep(0.1)

    run(leases, story())


def test_a_timeout_after_the_loss_still_raises(leases: Leases, block: Callable[[], Any]) -> None:
    """F8: the block has undone its cancellation, so that the code around it counts right."""

    async def story() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20.0):
                    with pytest.raises(LeaseLostError):
                        async with block():
                            await asyncio.sleep(3600)
                    await asyncio.sleep(3600)

    run(leases, story())


async def failing(*work: Callable[[], Coroutine[Any, Any, None]]) -> list[type[BaseException]]:
    """The errors of a task group with that work to do.

    In a task of its own: some leave their cancellation behind (3.11).
    """

    async def group() -> None:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each())

    (failed,) = await asyncio.gather(asyncio.create_task(group()), return_exceptions=True)
    assert isinstance(failed, ExceptionGroup)
    return [type(error) for error in failed.exceptions]


def test_a_task_group_in_the_body_is_cancelled_with_it(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F8: and a group around it gets the loss as an error."""
    ended = []

    async def child() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(leases.clock.elapsed())

    async def visit() -> None:
        async with block(), asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    assert run(leases, failing(visit, child)) == [LeaseLostError]

    assert len(ended) == 3
    assert max(ended) <= LEASE


def test_a_task_group_that_fails_at_the_moment_of_the_loss_keeps_its_own_error(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F8: the sibling's error cancels the task, the loss does too: the group must not take the one
    for the other.
    """

    async def visit() -> None:
        async with block():
            await asyncio.sleep(3600)

    async def fail() -> None:
        await asyncio.sleep(1.0)
        asyncio.get_running_loop().call_soon(leases.forget)  # right before the group gets the error
        raise ZeroDivisionError

    assert run(leases, failing(visit, fail)) == [ZeroDivisionError]


# More than one ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which", ["inner", "outer", "both", "both, the inner first", "both, the outer first"]
)
@pytest.mark.parametrize("second", ["another limiter", "the same"])
def test_the_lost_one_of_two_blocks_raises(
    leases: Leases, api: Limiter, block: Callable[[], Any], second: str, which: str
) -> None:
    """Nested, each with a watch of its own: of two limiters, or of one that is entered twice.

    A key's limiter is as its whole.
    """
    through = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        try:
            async with block():
                try:
                    async with api["key"] if second == "another limiter" else block():
                        outer, inner = leases.permits
                        lost = {
                            "inner": [inner],
                            "outer": [outer],
                            "both, the inner first": [inner, outer],
                        }
                        loop.call_later(1.0, leases.forget, *lost.get(which, [outer, inner]))
                        await asyncio.sleep(3600)
                except BaseException as error:
                    through.append(type(error))
                    raise
        except BaseException as error:
            through.append(type(error))
            raise

    with pytest.raises(LeaseLostError):
        run(leases, story())

    assert through == [
        LeaseLostError if which == "inner" else asyncio.CancelledError,
        LeaseLostError,
    ]


def test_each_task_of_a_limiter_has_a_watch_of_its_own(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """The loss of one of them does not affect the others."""

    async def visit() -> None:
        async with block():
            await asyncio.sleep(5.0)

    async def story() -> list[Any]:
        visits = [asyncio.create_task(visit()) for _ in range(5)]
        await asyncio.sleep(1.0)
        leases.forget(*leases.permits[1::2])
        return await asyncio.gather(*visits, return_exceptions=True)

    assert [type(result) for result in run(leases, story())] == [type(None), LeaseLostError] * 2 + [
        type(None)
    ]


def test_a_generator_of_the_users_own_that_another_task_closes_gives_its_permit_back(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F6: the block ends in a task that did not enter it, and nothing is left that could go off."""

    async def numbers() -> AsyncIterator[int]:
        async with block():
            yield 1

    async def story() -> None:
        steps: Any = numbers()
        await anext(steps)
        await asyncio.create_task(steps.aclose())
        assert len(leases.back) == 1
        await asyncio.sleep(2 * LEASE)

    run(leases, story())
