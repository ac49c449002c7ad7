"""Chores: what headgate does in tasks of its own, for no caller in particular.

Here lives how such work is begun, how long it pauses between two attempts, and that whatever comes in its way is only trouble;
nothing about servers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from headgate.stores.redis.transport.failures import NotThereError

T = TypeVar("T")
S = TypeVar("S")
TURN = 0.25  # seconds for which one is asked alone: who is silent for longer is still waited for, but not by the next one
BACKOFF = 0.05  # seconds before another attempt, doubled for each further one, with full jitter
JITTER = random.SystemRandom()  # not the user's own chance, and another one after a fork


def begun(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task of our own: where a loop is closed without a word to its tasks, nobody has to hear that ours were left behind."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    with suppress(
        AttributeError
    ):  # there is no public way, and tasks may be of the user's own making
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio does so for its own
    return task


def stop(task: asyncio.Task[Any]) -> None:
    """Cancel `task`. Where its loop does not run, close its coroutine instead: it would never hear of a cancellation."""
    coroutine = task.get_coro()
    if task.get_loop().is_running():
        task.cancel()
    elif isinstance(coroutine, Coroutine):
        with suppress(RuntimeError):  # it wanted to wait for something at its end
            coroutine.close()


def pause(attempt: int, longest: float) -> float:
    """Seconds before another attempt, when so many were in vain."""
    return JITTER.uniform(0, min(longest, BACKOFF * 2 ** min(attempt, 10)))


async def trouble_of(work: Coroutine[Any, Any, None]) -> Exception | None:
    """What came in the way of `work`: a user's credential_provider may raise anything, a cancellation that is not ours included."""
    try:
        await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return NotThereError("it was cancelled")
    except Exception as error:
        return error
    return None


class NoAnswerError(NotThereError):
    """None of those who were asked had an answer: what came in the way of each, None for who had nothing to say."""

    def __init__(self, troubles: Mapping[Any, BaseException | None]) -> None:
        super().__init__("nobody answers")
        self.troubles = troubles


async def first_answer(
    asked: Iterable[S], ask: Callable[[S], Coroutine[Any, Any, T | None]]
) -> tuple[S, T]:
    """Who gave the first answer, and what it was. Raises NoAnswerError.

    They are asked in order: each as soon as the one before has failed, or has said nothing for a while.
    """
    left, troubles = list(asked), dict[S, BaseException | None]()
    asking: dict[asyncio.Task[T | None], S] = {}
    try:
        while left or asking:
            if left:
                who = left.pop(0)
                asking[begun(ask(who), "headgate-ask")] = who
            done, _ = await asyncio.wait(
                asking, timeout=TURN if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                who = asking.pop(task)
                troubles[who] = error_of(task)
                if troubles[who] is None and (answer := task.result()) is not None:
                    return who, answer
    finally:
        await ended(asking)
    raise NoAnswerError(troubles)


async def ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Go on when they are over, as soon as can be."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        error_of(task)


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """What came in the way of it: a cancellation too, which is not ours."""
    return NotThereError("it was cancelled") if task.cancelled() else task.exception()
