"""The works: the use of a limiter while the clock runs. Each shape owns its clock and returns
seconds.

All entrants in a row go through the same lines. A shape knows no library; its entry comes from a
maker. Clients are opened before; the name of a shape says which objects it makes inside or outside
of the clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import wraps
from time import perf_counter
from typing import Any

from benchmarks.stage import Maker, Shape, Stage

PATIENCE = 60.0  # seconds after which a contestant that does not answer has failed
THREADS = 4
CROWD = 100


class RunFailedError(Exception):
    """A run that is no measurement: some of its callers got an error or no answer.

    The text is the reason.
    """


def in_the_loop(shape: Callable[[Maker, str, int], Coroutine[Any, Any, float]]) -> Shape:
    """Run an async shape in the row's event loop, and give up on it after a while."""

    @wraps(shape)
    def play(stage: Stage, make: Maker, name: str, times: int) -> float:
        async def patiently() -> float:
            try:
                async with asyncio.timeout(PATIENCE) as deadline:
                    return await shape(make, name, times)
            except TimeoutError:
                if deadline.expired():
                    raise no_answer() from None
                raise

        return stage.run(patiently())

    return play


@in_the_loop
async def entered_in_turn(make: Maker, name: str, times: int) -> float:
    """`async with`, one after another, on one instance made before the clock starts."""
    entry = make(name)
    async with entry:  # the first entry sets up everything that is set up once
        pass
    start = perf_counter()
    for _ in range(times):
        async with entry:
            pass
    return perf_counter() - start


@in_the_loop
async def called_in_turn(make: Maker, name: str, times: int) -> float:
    """The same for calls that are awaited and not entered."""
    call: Callable[[], Awaitable[None]] = make(name)
    await call()
    start = perf_counter()
    for _ in range(times):
        await call()
    return perf_counter() - start


def entered_in_turn_sync(_stage: Stage, make: Maker, name: str, times: int) -> float:
    """`with`, one after another, on one instance made before the clock starts."""
    entry = make(name)
    with entry:
        pass
    start = perf_counter()
    for _ in range(times):
        with entry:
            pass
    return perf_counter() - start


def called_in_turn_sync(_stage: Stage, make: Maker, name: str, times: int) -> float:
    call: Callable[[], None] = make(name)
    call()
    start = perf_counter()
    for _ in range(times):
        call()
    return perf_counter() - start


@in_the_loop
async def made_and_entered_at_once(make: Maker, name: str, times: int) -> float:
    """The classic: every task makes an instance of its own (of one name) and enters it; making is
    timed.
    """

    async def caller() -> None:
        async with make(name):
            await asyncio.sleep(0)

    return await all_at_once(caller, times)


@in_the_loop
async def made_and_entered_by_the_hundred(make: Maker, name: str, times: int) -> float:
    """The same number of tasks, instances and entries, in crowds of a hundred that come one after
    another.
    """

    async def caller() -> None:
        async with make(name):
            await asyncio.sleep(0)

    return sum([await all_at_once(caller, CROWD) for _ in range(times // CROWD)])


@in_the_loop
async def entered_at_once(make: Maker, name: str, times: int) -> float:
    """Many tasks enter one instance, after a first crowd that sets up everything once and is not
    timed.
    """
    entry = make(name)

    async def caller() -> None:
        async with entry:
            await asyncio.sleep(0)

    await all_at_once(caller, times)
    return await all_at_once(caller, times)


@in_the_loop
async def called_at_once(make: Maker, name: str, times: int) -> float:
    """The same for calls that are awaited and not entered."""
    call: Callable[[], Coroutine[Any, Any, None]] = make(name)
    await all_at_once(call, times)
    return await all_at_once(call, times)


def entered_by_threads(_stage: Stage, make: Maker, name: str, times: int) -> float:
    """A few threads enter one instance again and again, and meet whenever one is preempted
    inside.
    """
    entry = make(name)
    failures: list[BaseException | None] = []
    barrier = threading.Barrier(THREADS + 1)

    def caller() -> None:
        barrier.wait()
        try:
            for _ in range(times // THREADS):
                with entry:
                    pass
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = perf_counter()
    for thread in threads:
        thread.join(PATIENCE)
    elapsed = perf_counter() - start
    if any(thread.is_alive() for thread in threads):
        raise no_answer()
    complain(failures, THREADS)
    return elapsed


async def all_at_once(caller: Callable[[], Coroutine[Any, Any, None]], times: int) -> float:
    start = perf_counter()
    outcomes = await asyncio.gather(*(caller() for _ in range(times)), return_exceptions=True)
    elapsed = perf_counter() - start
    complain(outcomes, times)
    return elapsed


def complain(outcomes: Iterable[BaseException | None], times: int) -> None:
    errors = [outcome for outcome in outcomes if outcome is not None]
    if errors:
        reason = f"{len(errors):,} of {times:,} callers: {describe(errors[0])}"
        raise RunFailedError(reason) from errors[0]


def no_answer() -> RunFailedError:
    return RunFailedError(f"no answer within {PATIENCE:.0f} s")


def describe(error: BaseException) -> str:
    """An error in one short line: its type and the first line of its text."""
    says = str(error).strip().splitlines()
    return f"{type(error).__name__}: {says[0]}" if says else type(error).__name__
