"""Code that Python runs inside a queue of memory: a signal handler, or a `__del__` that the
collector runs (H1).

The clock is read in the middle of the locked code, so a call from there is such a call, in the same
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headgate import Concurrency, Limiter, LimiterClosedError, Permit, Rate
from headgate.clock import Clock
from headgate.stores.memory.store import MemoryStore
from tests.conformance.test_key_states import at_place
from tests.local_waiters import assert_all_free


class InterruptedClock(Clock):
    """It runs the interrupting code in the locked code, once."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[], object]] = []

    def now(self) -> int:
        if self.handlers:
            self.handlers.pop()()
        return 1_000_000


class Scene:
    """A limiter of permits and a rate, one permit taken, and a clock whose reading can be
    interrupted.
    """

    def __init__(self, name: str) -> None:
        self.clock = InterruptedClock()
        self.name = name
        self.store = MemoryStore(self.clock)
        self.limiter = Limiter(name, Concurrency(3), Rate(100, per=1), store=self.store)
        self.permit = self.limiter.acquire_sync()

    def acquire(self) -> None:
        self.limiter.acquire_sync().release()

    def interrupted_by(
        self, handler: Callable[[], object], call: Callable[[], object] | None = None
    ) -> Any:
        """The result or the error of the handler, which interrupts `call`, if unsaid an acquire.
        Fails if the thread waits for itself.
        """
        answers: list[Any] = []

        def handle() -> None:
            try:
                answers.append(handler())
            except Exception as error:
                answers.append(error)

        def work() -> None:
            self.clock.handlers.append(handle)
            (call or self.acquire)()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), "the thread waits for itself"
        return answers[0]


@pytest.fixture
def scene(name: str) -> Iterator[Scene]:
    made = Scene(name)
    yield made
    made.permit.release()


SAYS: dict[str, Callable[[Scene], object]] = {
    "update": lambda scene: scene.limiter.update(Concurrency(7), Rate(100, per=1)),
    "pause": lambda scene: scene.limiter.pause(1000),
    "resume": lambda scene: scene.limiter.resume(),
    "reset": lambda scene: scene.limiter.reset(),
    "drain": lambda scene: scene.limiter.drain(requests=5),
    "release": lambda scene: scene.permit.release(),
    "settle": lambda scene: scene.permit.settle(requests=4),
    "status": lambda scene: scene.limiter.status(),
    "repr": lambda scene: repr(scene.limiter),
    "key": lambda scene: scene.limiter["other"].status(),
    "another limiter": lambda scene: Limiter(
        scene.name, Concurrency(3), Rate(100, per=1), store=scene.store
    ),
    "other limits": lambda scene: Limiter(scene.name, Concurrency(2), store=scene.store),
}


@pytest.mark.parametrize("says", SAYS)
def test_calls_that_never_block_answer_inside_the_same_queue(scene: Scene, says: str) -> None:
    """H1: called in the middle of an acquire of the same thread."""
    answer = scene.interrupted_by(lambda: SAYS[says](scene))
    assert not isinstance(answer, Exception), answer


def test_a_close_inside_the_same_queue_is_an_error_if_it_would_wait(scene: Scene) -> None:
    """H1: the waiter needs the lock, and the handler has it. The limiter is closed nevertheless."""
    permits = [scene.limiter.acquire_sync() for _ in range(2)]
    waiter = threading.Thread(target=scene.acquire, daemon=True)
    waiter.start()
    while scene.limiter.status().waiting == 0:
        pass

    error = scene.interrupted_by(scene.limiter.close, scene.limiter.status)

    assert isinstance(error, RuntimeError)
    assert "call it outside the signal handler or finalizer" in str(error)
    for permit in permits:
        permit.release()
    waiter.join()
    with pytest.raises(LimiterClosedError):
        scene.acquire()


def test_a_close_inside_the_same_queue_that_need_not_wait_is_done(scene: Scene) -> None:
    """H1: the only waiter is a task of a loop that does not run, and it is refused."""
    permits = [scene.limiter.acquire_sync() for _ in range(2)]
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(scene.limiter.__aenter__())
    loop.run_until_complete(asyncio.sleep(0))

    closed = scene.interrupted_by(lambda: scene.limiter.close(True), scene.limiter.status)

    assert closed is None
    with pytest.raises(LimiterClosedError):
        loop.run_until_complete(waiter)
    loop.close()
    for permit in permits:
        permit.release()


def test_an_update_inside_the_queue_takes_effect_as_soon_as_it_is_left(scene: Scene) -> None:
    """H1: SIGHUP reloads the limits while the thread acquires."""
    scene.interrupted_by(lambda: SAYS["update"](scene))
    assert scene.limiter.status().limits[0].capacity == 7


def test_a_pause_and_a_drain_inside_the_queue_take_effect_as_soon_as_it_is_left(
    scene: Scene,
) -> None:
    """H1."""
    scene.interrupted_by(lambda: (SAYS["drain"](scene), SAYS["pause"](scene)))
    status = scene.limiter.status()
    assert status.paused > 0
    assert status.limits[1].left <= 5


def test_a_release_inside_the_queue_takes_effect_as_soon_as_it_is_left(scene: Scene) -> None:
    """H1, S7."""
    scene.interrupted_by(scene.permit.release)
    assert_all_free(scene.limiter)


def test_a_try_inside_the_same_queue_is_refused_and_charges_nothing(scene: Scene) -> None:
    """H1, T8: a `__del__` that tries, in the middle of an acquire."""
    assert not scene.interrupted_by(scene.limiter.try_acquire)
    scene.permit.release()
    assert_all_free(scene.limiter)


@pytest.mark.parametrize("way", ["block", "acquire", "acquire_sync"])
def test_a_blocking_acquire_inside_the_same_queue_is_an_error_that_says_so(
    scene: Scene, way: str
) -> None:
    """H1: it would wait for itself."""

    def block() -> None:
        with scene.limiter if way == "block" else scene.limiter.acquire():
            raise AssertionError("it went through")

    error = scene.interrupted_by(scene.limiter.acquire_sync if way == "acquire_sync" else block)
    assert isinstance(error, RuntimeError)
    assert "interrupted this thread inside limiter" in str(error)
    assert "try_acquire" in str(error)
    scene.permit.release()
    assert_all_free(scene.limiter)


def test_another_queue_can_be_used_inside_a_queue_as_long_as_nothing_waits(scene: Scene) -> None:
    """H1: a handler that acquires from another limiter passes, and is refused where it
    would wait.
    """
    other = Limiter(f"{scene.name}-other", Concurrency(1), store=scene.store)

    def acquire() -> None:
        with other:
            pass

    assert scene.interrupted_by(acquire) is None
    with other:
        error = scene.interrupted_by(acquire)
    assert isinstance(error, RuntimeError)
    assert "inside another limiter" in str(error)
    assert_all_free(other)


def test_two_threads_that_are_inside_one_queue_each_can_call_the_others(name: str) -> None:
    """H1: a finalizer in each calls the queue in which the other is."""
    scenes = [Scene(f"{name}-{number}") for number in range(2)]
    both = threading.Barrier(2)
    errors: list[BaseException] = []

    def meet(other: Scene) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(
                0.2
            )  # with one lock for both, the second cannot be inside as long as the first is
        permit = other.limiter.try_acquire()
        if permit:
            permit.release()

    def work(own: Scene, other: Scene) -> None:
        try:
            own.clock.handlers.append(lambda: meet(other))
            own.limiter.acquire_sync().release()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(scenes[n], scenes[1 - n]), daemon=True)
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive(), "each waits for the other"
    assert errors == []
    for scene in scenes:
        scene.permit.release()


@pytest.mark.parametrize("limit", [Rate(100, per=3600, unit="tokens"), "100 tokens/hour"], ids=str)
@pytest.mark.parametrize("total", [50, 60])
def test_a_settlement_inside_a_settlement_charges_nothing_twice(
    limit: Rate | str, total: int
) -> None:
    """H1: at whatever place a signal handler settles the permit that is being settled."""
    place, more = 0, True
    while more:
        limiter = Limiter("settled", limit, store=MemoryStore(InterruptedClock()))
        permit = limiter.try_acquire(tokens=10)
        assert isinstance(permit, Permit)
        handler = partial(permit.settle, tokens=total)
        more = at_place(place, partial(permit.settle, tokens=50), handler)
        used = limiter.status().limits[0].used
        assert used in {50, total}, place
        permit.settle(tokens=55)
        assert limiter.status().limits[0].used == 55
        place += 1
    assert place > 20
