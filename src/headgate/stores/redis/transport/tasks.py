"""Background tasks of headgate's own: their start and errors, and the first of several answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from headgate.stores.redis.transport.failures import NotThereError

T = TypeVar("T")
S = TypeVar("S")
# After these seconds the next server is asked, too. A late answer of the first still counts.
TURN = 0.25


def begun(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task. If its loop is closed without cancelling it, asyncio logs no warning."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    # asyncio does the same for its own tasks. There is no public way, and a user's task factory may
    # make tasks without this attribute.
    with suppress(AttributeError):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def stop(task: asyncio.Task[Any]) -> None:
    """Cancel `task`, or close its coroutine if its loop does not run and cannot cancel it."""
    coroutine = task.get_coro()
    if task.get_loop().is_running():
        task.cancel()
    elif isinstance(coroutine, Coroutine):
        with suppress(RuntimeError):  # The coroutine wanted to wait for something at its end.
            coroutine.close()


async def trouble_of(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Run `work` and return its error, if any.

    A user's credential_provider may raise any error, even a CancelledError without a cancellation
    of this task.
    """
    try:
        await work
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return NotThereError("it was cancelled")
    except Exception as error:
        return error
    return None


def is_cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class NoAnswerError(NotThereError):
    """`troubles` has the error of each server. None: it replied that it does not know."""

    def __init__(self, troubles: Mapping[Any, BaseException | None]) -> None:
        super().__init__("nobody answers")
        self.troubles = troubles


async def first_answer(
    asked: Iterable[S], ask: Callable[[S], Coroutine[Any, Any, T | None]]
) -> tuple[S, T]:
    """Return the server with the first answer, and the answer. Raise NoAnswerError if none has one.

    Each server is asked as soon as the one before it has failed, or was silent for TURN seconds.
    """
    left, troubles = list(asked), dict[S, BaseException | None]()
    asking: dict[asyncio.Task[T | None], S] = {}
    try:
        while left or asking:
            if left:
                server = left.pop(0)
                asking[begun(ask(server), "headgate-ask")] = server
            done, _ = await asyncio.wait(
                asking, timeout=TURN if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                server = asking.pop(task)
                troubles[server] = error_of(task)
                if troubles[server] is None and (answer := task.result()) is not None:
                    return server, answer
    finally:
        await ended(asking)
    raise NoAnswerError(troubles)


async def ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        error_of(task)


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error of `task`. A cancellation that headgate did not ask for counts as one, too."""
    return NotThereError("it was cancelled") if task.cancelled() else task.exception()
