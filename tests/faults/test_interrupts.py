"""H1: signal handlers that raise inside headgate, as Celery's soft time limit does, and handlers
and finalizers that call limiters.

Nothing hangs, no exception is lost, and no permit outlives its lease.
"""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from headgate import Limiter
from tests.machine import scaled
from tests.processes import running
from tests.programs.interrupted import WAYS
from tests.programs.reentrant import CALLS
from tests.world import at_rest

FEW, MANY = 100, 20_000  # interrupts
EACH = 2_000  # calls of each method from each place: 88,000 in all
SOME = ["update", "status", "try_acquire"]
LONG = scaled(500.0)  # seconds for many of them


def assert_unharmed(url: str, name: str, way: str, interrupts: int, admin: Redis) -> None:
    """Check the result while the process lives on and renews its permits."""
    with running("interrupted", url, name, way, interrupts) as process:
        raised, caught, ignored, early = map(int, process.line(LONG).split())
        assert raised == interrupts
        # In a finalizer, which Python lets raise nothing. Each new key has some.
        assert ignored <= raised / (20 if way == "new keys" else 100)
        assert caught + ignored == raised
        assert way != "contended" or early >= raised / 4  # most of these came in a wait
        keys = list(admin.scan_iter(f"headgate:{{{name}:*}}"))
        asyncio.run(rest(Limiter(name, *WAYS[way][1], store=url), keys))


async def rest(limiter: Limiter, keys: list[str]) -> None:
    """Wait until the limiter is at rest, and each key of it that the server has."""
    await at_rest(limiter)
    for key in keys:
        await at_rest(limiter[key.rpartition(":")[2].rstrip("}")])


@pytest.mark.parametrize(
    "way", ["with, a rate and a concurrency", "new keys", "ExitStack", "try_acquire", "contended"]
)
def test_an_exception_of_a_signal_handler_reaches_the_caller_and_leaves_no_permit_taken(
    name: str, redis_url: str, admin: Redis, way: str
) -> None:
    """S3, L5: given a thread that enters a limiter again and again, when a signal handler raises at
    random moments, then each exception reaches the caller. No call hangs, and no permit stays taken
    for longer than its lease.
    """
    assert_unharmed(redis_url, name, way, FEW, admin)


@pytest.mark.proof
@pytest.mark.parametrize("way", WAYS)
def test_after_20_000_interrupts_each_exception_has_reached_the_caller_and_no_permit_is_taken(
    name: str, redis_url: str, admin: Redis, way: str
) -> None:
    assert_unharmed(redis_url, name, way, MANY, admin)


def assert_answered(url: str, name: str, place: str, by: str, call: str, count: int) -> None:
    with running("reentrant", url, name, place, by, call, count) as process:
        made, refused = map(int, process.line(LONG).split())
        assert made == count
        assert refused == 0 or by == "finalizer"


@pytest.mark.parametrize("call", SOME)
def test_a_signal_handler_can_call_a_limiter_that_its_thread_is_using(
    name: str, redis_url: str, call: str
) -> None:
    """L5: `update` on SIGHUP is the usual way to reload limits."""
    assert_answered(redis_url, name, "thread", "signal", call, FEW)


@pytest.mark.parametrize("call", SOME)
def test_a_finalizer_can_call_a_limiter_in_whatever_code_the_collector_runs(
    name: str, redis_url: str, call: str
) -> None:
    """L5: when the collector runs the finalizer in headgate's own thread, a call that would wait
    for that thread raises StoreError.
    """
    assert_answered(redis_url, name, "loop", "finalizer", call, FEW)


@pytest.mark.proof
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("by", ["signal", "finalizer"])
@pytest.mark.parametrize("place", ["thread", "loop"])
def test_handlers_and_finalizers_can_make_2_000_calls_of_each_method_from_each_place(
    name: str, redis_url: str, place: str, by: str, call: str
) -> None:
    assert_answered(redis_url, name, place, by, call, EACH)
