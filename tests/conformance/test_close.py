"""A limiter can be closed: new acquires are refused, waiters are served or refused, and earlier
requests have arrived.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any
from weakref import ref

import pytest

from headgate import (
    Concurrency,
    HeadgateError,
    Limiter,
    LimiterClosedError,
    Permit,
    Rate,
    StoreError,
)
from headgate.closing import Closing
from headgate.forks import WAITING
from headgate.limits import Limit
from headgate.stores.memory.store import MemoryStore
from tests.processes import finished
from tests.servers import dead_port
from tests.world import HOUR, World, at_rest, long, soon, told, waiting


async def entered(limiter: Limiter) -> None:
    async with limiter:
        pass


async def acquired(limiter: Limiter) -> None:
    async with limiter.acquire():
        pass


async def tried(limiter: Limiter) -> None:
    permit = await limiter.atry_acquire()
    assert isinstance(permit, Permit)
    await permit.arelease()


async def decorated(limiter: Limiter) -> None:
    @limiter
    async def call() -> None: ...

    await call()


def entered_sync(limiter: Limiter) -> None:
    with limiter:
        pass


def acquired_sync(limiter: Limiter) -> None:
    limiter.acquire_sync().release()


def tried_sync(limiter: Limiter) -> None:
    permit = limiter.try_acquire()
    assert isinstance(permit, Permit)
    permit.release()


TASKS = pytest.mark.parametrize("ask", [entered, acquired, tried, decorated])
THREADS = pytest.mark.parametrize("ask", [entered_sync, acquired_sync, tried_sync])
WAITS = pytest.mark.parametrize("ask", [entered, acquired])
LIMITS = pytest.mark.parametrize(
    "limits",
    [[Concurrency(1)], [Concurrency(1), Rate(1000, per=HOUR)]],
    ids=["concurrency", "together"],
)
OPTIONS: list[dict[str, Any]] = [{}, {"on_lost": "cancel"}, {"on_store_error": "open"}]
LINES = pytest.mark.parametrize("options", OPTIONS, ids=["plain", "watched", "fallback"])


@TASKS
@LINES
@told
async def test_after_aclose_each_acquire_of_a_task_is_refused(
    world: World, ask: Callable[[Limiter], Coroutine[Any, Any, None]], options: dict[str, Any]
) -> None:
    """Promise 10: this is true of the limiter and of its keys. Other limiters of the name go on."""
    limiter = world.limiter(Concurrency(1), **options)
    before = limiter["k"]
    await ask(limiter)

    await soon(limiter.aclose())

    for closed in (limiter, before, limiter["k"], limiter["other"], copy.copy(limiter)):
        with pytest.raises(LimiterClosedError, match="was closed in this process"):
            await ask(closed)
    await ask(world.limiter(Concurrency(1)))


@THREADS
@LINES
def test_after_close_each_acquire_of_a_thread_is_refused(
    store: Any, name: str, ask: Callable[[Limiter], None], options: dict[str, Any]
) -> None:
    """Promise 10."""
    limiter = Limiter(name, Concurrency(1), store=store, **options)
    ask(limiter)

    limiter.close()

    for closed in (limiter, limiter["k"]):
        with pytest.raises(LimiterClosedError, match="was closed in this process"):
            ask(closed)
    ask(Limiter(name, Concurrency(1), store=store))


@told
async def test_an_acquire_made_before_the_close_and_entered_after_it_is_refused(
    world: World,
) -> None:
    """Promise 10."""
    limiter = world.limiter(Concurrency(1))
    asked = [limiter.acquire(), limiter.acquire()]
    await limiter.aclose()

    with pytest.raises(LimiterClosedError):
        async with asked[0]:
            pass
    with pytest.raises(LimiterClosedError):
        await asked[1]


@told
async def test_an_attached_limiter_can_be_closed_before_its_first_use_and_after_it(
    world: World,
) -> None:
    """Promise 10."""
    await acquired(world.limiter(Concurrency(1)))
    unused, used = (Limiter.attach(world.name, store=world.store) for _ in range(2))
    await acquired(used)

    for limiter in (unused, used):
        await soon(limiter.aclose())
        with pytest.raises(LimiterClosedError):
            await acquired(limiter)


@WAITS
@LIMITS
@LINES
@told
async def test_waiters_are_served_before_aclose_returns(
    world: World,
    ask: Callable[[Limiter], Coroutine[Any, Any, None]],
    limits: list[Any],
    options: dict[str, Any],
) -> None:
    """L1: given three waiters, when the limiter is closed, then all three pass, and then the close
    returns.
    """
    limiter = world.limiter(*limits, **options)
    permit = await limiter.acquire()
    callers = [asyncio.create_task(ask(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    closing = asyncio.create_task(limiter.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    permit.release()
    await soon(closing)

    for caller in callers:
        await soon(caller)


@WAITS
@LIMITS
@LINES
@told
async def test_waiters_are_refused_on_request_and_leave_the_queue(
    world: World,
    ask: Callable[[Limiter], Coroutine[Any, Any, None]],
    limits: list[Any],
    options: dict[str, Any],
) -> None:
    """S6, L6: waiters of the limiter and of its keys are refused. Those of another limiter of the
    name go on.
    """
    limiter, other = world.limiter(*limits, **options), world.limiter(*limits)
    permits = [await limiter.acquire(), await limiter["k"].acquire()]
    callers = [asyncio.create_task(ask(limiter)) for _ in range(3)]
    await waiting(limiter, 3)
    stays = asyncio.create_task(ask(other))
    keyed = asyncio.create_task(ask(limiter["k"]))
    await waiting(limiter, 4)
    await waiting(limiter["k"], 1)

    await soon(limiter.aclose(refuse_waiters=True))

    for caller in (*callers, keyed):
        with pytest.raises(LimiterClosedError):
            await soon(caller)
    await waiting(other, 1)
    for permit in permits:
        permit.release()
    await soon(stays)
    await at_rest(other)


@LINES
@pytest.mark.parametrize("refuse", [False, True], ids=["served", "refused"])
def test_waiting_threads_are_served_or_refused(
    store: Any, name: str, options: dict[str, Any], refuse: bool
) -> None:
    """L1, L6."""
    limiter = Limiter(name, Concurrency(1), store=store, **options)
    permit = limiter.acquire_sync()
    outcomes: list[object] = []

    def caller() -> None:
        try:
            acquired_sync(limiter)
        except LimiterClosedError as error:
            outcomes.append(error)
        else:
            outcomes.append("served")

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(soon(waiting(limiter, 3)))
    closer = threading.Thread(target=limiter.close, args=(refuse,))
    closer.start()
    if refuse:
        closer.join()
    permit.release()
    for thread in (*threads, closer):
        thread.join()

    assert [type(outcome) for outcome in outcomes] == [LimiterClosedError if refuse else str] * 3
    asyncio.run(soon(at_rest(limiter)))


@told
async def test_a_caller_that_is_cancelled_while_it_is_refused_is_cancelled(world: World) -> None:
    """L6: and it leaves the queue."""
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()
    caller = asyncio.create_task(entered(limiter))
    await waiting(limiter, 1)

    closing = asyncio.create_task(limiter.aclose(refuse_waiters=True))
    await asyncio.sleep(0)
    caller.cancel()
    await soon(closing)

    with pytest.raises((asyncio.CancelledError, LimiterClosedError)):
        await caller
    permit.release()
    await at_rest(limiter)


@told
async def test_waiters_can_be_refused_after_a_close_that_would_serve_them(world: World) -> None:
    """Promise 10: a second close may be stricter, and both return."""
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()
    caller = asyncio.create_task(entered(limiter))
    await waiting(limiter, 1)
    first = asyncio.create_task(limiter.aclose())
    await asyncio.sleep(0)

    await soon(limiter.aclose(refuse_waiters=True))

    await soon(first)
    with pytest.raises(LimiterClosedError):
        await soon(caller)
    permit.release()


@told
async def test_a_permit_can_be_released_and_settled_after_the_close(world: World) -> None:
    """L6: release, settle, status and flush go on; a further close does nothing."""
    limiter = world.limiter(Concurrency(1), Rate(100, per=HOUR, unit="tokens"))
    permit = await limiter.acquire(tokens=10)
    await soon(limiter.aclose())

    permit.settle(tokens=30)
    permit.release()
    await soon(limiter.aflush())
    await soon(limiter.aclose())

    assert [limit.used for limit in (await limiter.astatus()).limits] == [0, 30]


TOKENS = Rate(100, per=10_000_000, unit="tokens")  # none comes back within a test
# Each request alone, as any call would carry an update to the server. Then the use and the limits
# after it, where one permit for ten tokens was held.
REQUESTS: dict[str, tuple[Callable[[Limiter, Permit], object], list[tuple[int, Limit]]]] = {
    "release": (lambda _, permit: permit.release(), [(0, Concurrency(2)), (10, TOKENS)]),
    "settlement": (lambda _, permit: permit.settle(tokens=30), [(1, Concurrency(2)), (30, TOKENS)]),
    "update": (
        lambda limiter, _: limiter.update(Concurrency(7), TOKENS),
        [(1, Concurrency(7)), (10, TOKENS)],
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("store_kind", ["redis"])
async def test_when_aclose_returns_the_server_has_all_earlier_requests(
    store: str, name: str, what: str
) -> None:
    """L6: a thread asks as another process while the loop stands still, so the request cannot
    arrive after the close.
    """
    request, found = REQUESTS[what]
    elsewhere = f"{store}{'&' if '?' in store else '?'}socket_connect_timeout=7"
    limiter, other = (
        Limiter(name, Concurrency(2), TOKENS, store=place) for place in (store, elsewhere)
    )
    permit = await limiter.acquire(tokens=10)
    request(limiter, permit)

    await soon(limiter.aclose())
    with ThreadPoolExecutor() as threads:
        status = threads.submit(other.status).result(long())
    permit.release()

    assert [(limit.used, limit.limit) for limit in status.limits] == found


async def test_aclose_without_a_server_is_a_store_error_and_the_limiter_is_closed(
    name: str,
) -> None:
    """Promise 8."""
    limiter = Limiter(name, Rate(1, per=1), store=f"redis://127.0.0.1:{dead_port()}")
    limiter.update(Rate(2, per=1))

    with pytest.raises(StoreError):
        await limiter.aclose()
    with pytest.raises(LimiterClosedError):
        await limiter.acquire()


async def test_close_in_an_event_loop_is_an_error_that_names_aclose_and_closes_nothing(
    store: Any, name: str
) -> None:
    """It would wait for the loop that it blocks."""
    limiter = Limiter(name, Concurrency(1), store=store)
    with pytest.raises(RuntimeError, match="aclose"):
        limiter.close()
    await entered(limiter)


def test_close_of_a_single_key_is_an_error(name: str) -> None:
    """A message names the way out."""
    key = Limiter(name, Concurrency(1), store=MemoryStore())["k"]
    with pytest.raises(TypeError, match="of the whole limiter"):
        key.close()


def test_the_child_of_a_fork_does_not_wait_for_waiters_of_its_parent(name: str) -> None:
    """Promise 10."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()
    waiter = threading.Thread(target=acquired_sync, args=(limiter,))
    waiter.start()
    asyncio.run(soon(waiting(limiter, 1)))

    limiter._default.closing.forked()
    limiter.close()

    assert waiter.is_alive()
    permit.release()
    waiter.join()


def test_close_in_a_signal_handler_does_not_wait_for_the_acquire_that_it_interrupted(
    store_kind: str, name: str, redis_url: str
) -> None:
    """Promise 10: an error reports it, and the acquire goes on."""
    said = finished("close_in_handler", name, "memory://" if store_kind == "memory" else redis_url)
    assert "has interrupted in this thread" in said


def test_close_while_the_interpreter_ends_does_not_wait_for_a_daemon_thread() -> None:
    """Promise 10: that thread never runs again."""
    assert finished("close_at_exit") == "finalizing\nclosed\n"


def test_close_does_not_wait_for_waiters_of_a_closed_loop(name: str) -> None:
    """L6: nothing can wake them."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    loop = asyncio.new_event_loop()
    permit = loop.run_until_complete(limiter.acquire().__aenter__())
    caller = loop.create_task(entered(limiter))
    loop.run_until_complete(waiting(limiter, 1))
    caller._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    limiter.close()

    assert not caller.done()
    permit.release()


def test_a_close_returns_when_the_loop_of_its_waiters_is_closed(
    store_kind: str, name: str, redis_url: str
) -> None:
    """L6: also when the loop is closed while the close waits."""
    limiter = Limiter(
        name, Concurrency(1), store=MemoryStore() if store_kind == "memory" else redis_url
    )
    permit = limiter.acquire_sync()
    loop, caller = with_a_waiter(limiter)
    closer = threading.Thread(target=limiter.close)

    closer.start()
    loop.close()
    closer.join(long())

    assert not closer.is_alive()
    assert not caller.done()
    permit.release()


def test_a_close_does_not_wait_for_refused_waiters_in_a_stopped_loop(
    name: str,
) -> None:
    """L6: the waiters get the error when their loop runs again."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()
    loop, caller = with_a_waiter(limiter)

    limiter.close(refuse_waiters=True)

    with pytest.raises(LimiterClosedError):
        loop.run_until_complete(caller)
    loop.close()
    permit.release()


def with_a_waiter(limiter: Limiter) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]:
    """An event loop that does not run, and its task that waits."""
    loop = asyncio.new_event_loop()
    caller = loop.create_task(entered(limiter))
    loop.run_until_complete(waiting(limiter, 1))
    caller._log_destroy_pending = False  # type: ignore[attr-defined]
    return loop, caller


async def queued_unseen(limiter: Limiter) -> list[asyncio.Task[None]]:
    """Two tasks that wait. No `status()` has counted them, so they wait in the fastest way."""
    callers = [asyncio.create_task(entered(limiter)) for _ in range(2)]
    await asyncio.sleep(0)
    return callers


async def test_acquires_that_no_status_has_counted_are_refused(name: str) -> None:
    """Promise 10: only those of the limiter that is closed; others of its name go on."""
    store = MemoryStore()
    limiter, other = (Limiter(name, Concurrency(1), store=store) for _ in range(2))
    async with limiter:
        callers, others = await queued_unseen(limiter), await queued_unseen(other)

        await soon(limiter.aclose(refuse_waiters=True))

        for caller in callers:
            with pytest.raises(LimiterClosedError):
                await soon(caller)
    await soon(asyncio.gather(*others))


async def test_a_close_waits_for_acquires_that_no_status_has_counted(name: str) -> None:
    """Promise 10: it returns when they are served."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = await limiter.acquire()
    callers = await queued_unseen(limiter)
    closing = asyncio.create_task(limiter.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()

    permit.release()

    await soon(closing)
    await soon(asyncio.gather(*callers))
    assert not limiter._default.closing.waiting


async def test_a_thread_that_refuses_the_waiters_of_a_loop_loses_no_permit(name: str) -> None:
    """Promise 10, S7: the waiters leave the queue before the permit is released."""
    store = MemoryStore()
    for _ in range(50):
        limiter, other = (Limiter(name, Concurrency(1), store=store) for _ in range(2))
        permit = await limiter.acquire()
        callers = await queued_unseen(limiter)

        closer = threading.Thread(target=limiter.close, args=(True,))
        closer.start()

        ends = await soon(asyncio.gather(*callers, return_exceptions=True))
        assert {type(end) for end in ends} == {LimiterClosedError}
        await asyncio.to_thread(closer.join)
        permit.release()
        tried_sync(other)


async def test_waiters_that_are_refused_during_releases_are_served_or_refused(name: str) -> None:
    """Promise 10, S7: given a thread that closes while a loop releases, no permit is lost."""
    store = MemoryStore()
    for _ in range(50):
        limiter, other = (Limiter(name, Concurrency(20), store=store) for _ in range(2))
        permits = [await other.acquire() for _ in range(20)]
        callers = [asyncio.create_task(entered(limiter)) for _ in range(100)]
        await asyncio.sleep(0)
        await other.astatus()

        closer = threading.Thread(target=limiter.close, args=(True,))
        closer.start()
        for permit in permits:
            permit.release()

        ends = await soon(asyncio.gather(*callers, return_exceptions=True))
        assert {type(end) for end in ends} <= {type(None), LimiterClosedError}
        await asyncio.to_thread(closer.join)
        await at_rest(other)


@pytest.mark.parametrize("counted", [False, True])
async def test_a_close_waits_for_an_acquire_that_is_granted_in_a_busy_loop(
    name: str, counted: bool
) -> None:
    """Promise 10: the close returns after the task has begun."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = await limiter.acquire()
    caller, closed = asyncio.create_task(entered(limiter)), threading.Event()
    await asyncio.sleep(0)
    if counted:
        await limiter.astatus()

    def release_and_close() -> None:
        permit.release()
        limiter.close()
        closed.set()

    threading.Thread(target=release_and_close).start()

    assert not closed.wait(0.05)  # this loop is busy for as long
    await soon(caller)
    assert await asyncio.to_thread(closed.wait, long())


def test_a_close_returns_whichever_step_of_an_acquire_a_signal_handler_interrupts(
    name: str,
) -> None:
    """Promise 10: given an exception after the n-th call in a waiting acquire, whose traceback is
    kept, then a close does not wait for that acquire.
    """
    kept: list[InterruptedError] = []
    for step in itertools.count(1):
        limiter = Limiter(name, Concurrency(1), store=MemoryStore())
        permit = limiter.acquire_sync()
        releaser = threading.Thread(target=release_to_the_next, args=(limiter, permit))
        releaser.start()
        try:
            entered_with_interrupt(limiter, step)
        except InterruptedError as error:
            kept.append(error)
        else:
            break
        closer = threading.Thread(target=limiter.close, daemon=True)
        closer.start()
        closer.join(long())
        assert not closer.is_alive(), step
        releaser.join()
        assert all(
            each.request.closing is not limiter._default.closing for each in list(WAITING)
        ), step
    assert len(kept) > 20


def release_to_the_next(limiter: Limiter, permit: Permit) -> None:
    """Release when an acquire waits, or when the limiter was closed before one did."""
    while limiter.status().waiting == 0 and not limiter._default.closing.closed:
        pass
    permit.release()


def entered_with_interrupt(limiter: Limiter, step: int) -> None:
    """An acquire. Raises InterruptedError at its n-th `step` at which Python runs signal handlers:
    when a function begins, or after a call of a C function.
    """
    left = step

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                raise InterruptedError

    gc.disable()  # a finalizer of other objects would swallow the exception
    sys.setprofile(count)
    try:
        entered_sync(limiter)
    finally:
        sys.setprofile(None)
        gc.enable()


async def test_a_refused_acquire_whose_task_has_ended_is_not_reported() -> None:
    """C6: asyncio says nothing of an exception that was never retrieved."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    closing = Closing("closed")
    place: asyncio.Future[None] = asyncio.Future()
    closing.add_waiting(ref(place))
    closer = asyncio.create_task(closing.aclose(refuse_waiters=True))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert place.done()

    closing.discard_waiting(ref(place))
    del place
    await soon(closer)

    gc.collect()
    assert reported == []


@pytest.mark.parametrize("value", ["no", 1, None])
async def test_refuse_waiters_is_a_bool(name: str, value: Any) -> None:
    """With any other value nothing is closed."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    with pytest.raises(TypeError, match=r"\.close\(refuse_waiters=.* must be a bool"):
        limiter.close(value)
    with pytest.raises(TypeError, match=r"\.aclose\(refuse_waiters=.* must be a bool"):
        await limiter.aclose(value)
    with limiter:
        pass


def test_the_error_can_be_pickled_and_is_one_of_headgate(name: str) -> None:
    """It names the limiter and the way out."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    limiter.close()
    with pytest.raises(HeadgateError, match="make another Limiter") as caught:
        limiter.try_acquire()
    assert f"Limiter {name!r}" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
