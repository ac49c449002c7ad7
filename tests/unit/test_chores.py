"""Tasks: which server is asked in which order and for how long, the obstacles, and how long a pause
is. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate.stores.redis.transport import backoff as backoffs
from headgate.stores.redis.transport.backoff import backoff
from headgate.stores.redis.transport.endpoint import NotThereError
from headgate.stores.redis.transport.tasks import (
    TURN,
    NoAnswerError,
    begun,
    ended,
    first_answer,
    stop,
    trouble_of,
)
from tests.virtual import VirtualClock


class Round:
    """Each server does the action of its name; when each was asked, and which were not waited for
    to the end.
    """

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.stopped: list[str] = []

    async def ask(self, server: str) -> str | None:
        self.asked[server] = round(asyncio.get_running_loop().time() - self.begin, 6)
        if server == "fails":
            raise OSError("on purpose")
        if server == "is cancelled":
            raise asyncio.CancelledError
        try:
            await asyncio.sleep(
                {"is slow": 1.5 * TURN, "is silent": 3600, "is silent, too": 3600}.get(server, 0)
            )
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it takes its time
            self.stopped.append(server)
            raise
        return None if server == "does not know" else f"{server}!"

    async def answer(self, *asked: str) -> tuple[str, str]:
        self.begin = asyncio.get_running_loop().time()
        return await first_answer(asked, self.ask)


@pytest.fixture
def others() -> Round:
    return Round()


def run_story(story: Coroutine[Any, Any, Any]) -> Any:
    return VirtualClock().run(story)


def test_the_next_server_is_asked_at_once_after_one_without_an_answer(others: Round) -> None:
    """And when one has answered, no other is asked."""
    assert run_story(
        others.answer("fails", "does not know", "is cancelled", "knows", "knows, too")
    ) == (
        "knows",
        "knows!",
    )

    assert others.asked == dict.fromkeys(["fails", "does not know", "is cancelled", "knows"], 0)


def test_the_next_server_is_asked_soon_after_a_silent_one(others: Round) -> None:
    """And not left behind: a server that is not needed any more has ended by then."""
    assert run_story(others.answer("is silent", "is silent, too", "knows")) == ("knows", "knows!")

    assert others.asked == {"is silent": 0, "is silent, too": TURN, "knows": 2 * TURN}
    assert sorted(others.stopped) == ["is silent", "is silent, too"]


def test_the_answer_of_a_slow_server_may_come_first(others: Round) -> None:
    assert run_story(others.answer("is slow", "is silent")) == ("is slow", "is slow!")
    assert others.stopped == ["is silent"]


@pytest.mark.parametrize("before", [[], ["fails"], ["does not know"]])
def test_the_answer_of_the_last_server_is_awaited_as_long_as_it_takes(
    others: Round, before: list[str]
) -> None:
    assert run_story(others.answer(*before, "is slow")) == ("is slow", "is slow!")


def test_the_error_without_an_answer_names_the_trouble_of_each_server(others: Round) -> None:
    with pytest.raises(NoAnswerError) as error:
        run_story(others.answer("fails", "does not know", "is cancelled"))

    troubles = {server: type(trouble) for server, trouble in error.value.troubles.items()}
    assert troubles == {
        "fails": OSError,
        "does not know": type(None),
        "is cancelled": NotThereError,
    }


def test_all_questions_have_ended_when_the_caller_gives_up(others: Round) -> None:
    async def story() -> None:
        async with asyncio.timeout(2.5 * TURN):
            await others.answer("is silent", "is silent, too")

    with pytest.raises(TimeoutError):
        run_story(story())

    assert sorted(others.stopped) == ["is silent", "is silent, too"]


def test_ended_without_tasks_returns_at_once() -> None:
    run_story(ended([]))


# Trouble ------------------------------------------------------------------------------------------


async def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [OSError("on purpose"), KeyError("on purpose")])
def test_trouble_of_returns_the_error(error: Exception) -> None:
    assert run_story(trouble_of(raising(error))) is error
    assert run_story(trouble_of(asyncio.sleep(0))) is None


def test_trouble_of_returns_a_foreign_cancellation_and_raises_our_own() -> None:
    async def ours() -> None:
        async with asyncio.timeout(1):
            await trouble_of(asyncio.sleep(2))

    assert isinstance(run_story(trouble_of(raising(asyncio.CancelledError()))), NotThereError)
    with pytest.raises(TimeoutError):
        run_story(ours())


# Pauses -------------------------------------------------------------------------------------------


class Longest:
    """In place of chance."""

    def uniform(self, least: float, most: float) -> float:
        return most


def test_each_backoff_may_be_twice_the_one_before_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoffs, "JITTER", Longest())
    monkeypatch.setattr(backoffs, "BACKOFF", 1.0)

    seconds = [backoff(attempt, 100.0) for attempt in (0, 1, 2, 6, 7, 10_000)]
    assert seconds == [1, 2, 4, 64, 100, 100]
    assert backoff(10_000, 1e9) == backoff(10, 1e9) == 1024


async def wait_and_say(ends: list[type[BaseException]]) -> None:
    try:
        await asyncio.sleep(3600)
    except BaseException as end:
        ends.append(type(end))
        raise


def test_a_task_whose_loop_runs_is_cancelled() -> None:
    ends: list[type[BaseException]] = []

    async def story() -> None:
        task = begun(wait_and_say(ends), "chore")
        await asyncio.sleep(0)
        stop(task)
        await asyncio.wait([task])

    run_story(story())
    assert ends == [asyncio.CancelledError]


def test_a_task_whose_loop_does_not_run_is_closed() -> None:
    """F7: no cancellation reaches it."""
    ends: list[type[BaseException]] = []

    async def story() -> asyncio.Task[None]:
        task = begun(wait_and_say(ends), "chore")
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    stop(loop.run_until_complete(story()))
    loop.close()
    assert ends == [GeneratorExit]
