"""An update while the event loop processes the reply to an earlier call: the update is not lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import Concurrency, Limiter
from headgate.internals import queue_of
from headgate.stores.redis.limit_sync import LimitSync
from tests.faults.scene import client_of_its_own
from tests.processes import finished
from tests.world import LONG, declare, soon, until

ONE, TWO, OTHERS = Concurrency(1), Concurrency(2), Concurrency(3)
MANY = 60  # moments of one step


class Scene:
    """A limiter in this process, and two other processes that use its name."""

    def __init__(self, name: str, url: str) -> None:
        self.limiter = Limiter(name, ONE, store=client_of_its_own(url))
        self.former = Limiter(name, ONE, store=client_of_its_own(url))
        self.others = Limiter(name, OTHERS, store=client_of_its_own(url))


async def declares(scene: Scene) -> None:
    """The server takes what the limiter declares."""
    await declare(scene.limiter)


async def learns_of_others(scene: Scene) -> None:
    """The limiter has declared its limits.

    The other process declares others, and the limiter learns of them.
    """
    await declare(scene.limiter)
    await declare(scene.others)
    await declare(scene.limiter)


async def is_turned_down(scene: Scene) -> None:
    """An update of the other process overrules the limits. The limiter declares them again."""
    await declare(scene.former)
    await scene.others.aupdate(OTHERS)
    await declare(scene.limiter)


Story = Callable[[Scene], Awaitable[None]]
STEPS: dict[str, Story] = {
    "note_carried": declares,
    "note_overruled": learns_of_others,
    "note_turned_down": is_turned_down,
}


def in_a_thread(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


def in_a_handler(act: Callable[[], None]) -> None:
    """As a signal handler or a finalizer, which interrupts the loop's thread."""
    act()


class At:
    """Calls `act` at call number `at` inside of the function that `during` runs, at which Python
    may run a thread or a signal handler.
    """

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.reached = False
        self._left = at
        self._act = act

    def during(self, step: Callable[[], Any]) -> Any:
        sys.setprofile(self._event)
        try:
            return step()
        finally:
            sys.setprofile(None)

    def _event(self, frame: object, event: str, argument: object) -> None:
        self._left -= 1
        if self._left == -1:
            self.reached = True
            sys.setprofile(None)
            self._act()


@pytest.mark.parametrize("by", [in_a_thread, in_a_handler], ids=lambda by: by.__name__)
@pytest.mark.parametrize("step_name", STEPS)
async def test_an_update_holds_when_a_reply_is_processed_meanwhile(
    name: str,
    redis_url: str,
    step_name: str,
    by: Callable[[Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F11: given limits that a call declared or knew, when they are updated while the loop
    processes the reply, then the update holds.

    It comes at each moment of that step at which Python may run another thread or a signal handler.
    """
    whole = getattr(LimitSync, step_name)
    for at in range(MANY):
        scene = Scene(f"{name}-{at}", redis_url)
        moment = At(at, lambda scene=scene: by(lambda: scene.limiter.update(TWO)))

        def with_update(
            limit_sync: LimitSync, *what: Any, moment: At = moment, scene: Scene = scene
        ) -> Any:
            if limit_sync is not queue_of(scene.limiter).limits or moment.reached:
                return whole(limit_sync, *what)
            return moment.during(lambda: whole(limit_sync, *what))

        monkeypatch.setattr(LimitSync, step_name, with_update)
        await soon(STEPS[step_name](scene))
        monkeypatch.undo()
        if not moment.reached:
            break
        for limiter in (scene.limiter, scene.others):
            await until(lambda status: status.limits[0].limit == TWO, limiter)
    assert 0 < at < MANY - 1


def test_a_child_of_a_fork_waits_for_no_update_of_its_parent(name: str, redis_url: str) -> None:
    """L5: given a thread inside an update at the moment of a fork, then the child updates and
    acquires.
    """
    assert finished("fork_in_update", redis_url, name).split() == ["3", "2"]
