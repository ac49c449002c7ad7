"""A wait of a caller with a span is a span below it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import time_ns
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from headgate import Concurrency, Limiter, MaxSleepExceededError, Rate
from headgate.telemetry import add_hook, remove_hook
from tests.telemetry.sdk import Telemetry
from tests.world import World, long, told, waiting


@told
async def test_a_wait_is_a_span_below_that_of_the_caller(
    world: World, telemetry: Telemetry
) -> None:
    tracer, limiter = telemetry.tracers.get_tracer("test"), world.limiter(Concurrency(1))
    started, waited = time_ns(), 0.0

    async def call() -> trace.SpanContext:
        nonlocal waited
        with tracer.start_as_current_span("request") as request:
            async with limiter.acquire() as permit:
                waited = permit.waited
        return request.get_span_context()

    async with limiter:
        caller = asyncio.create_task(call())
        await waiting(limiter, 1)
        await world.sleep(world.beat)
    parent = await caller

    [span] = telemetry.spans()
    assert span.parent is not None
    assert span.parent.span_id == parent.span_id
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes or {}) == {
        "headgate.limiter.name": world.name,
        "headgate.outcome": "waited",
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert started <= span.end_time <= time_ns()
    assert (span.end_time - span.start_time) / 1e9 >= world.beat
    if not world.virtual:
        assert started <= span.start_time
        assert (span.end_time - span.start_time) / 1e9 <= waited + world.slack


def test_the_wait_of_a_thread_is_a_span_below_that_of_the_caller(
    store: object, name: str, telemetry: Telemetry
) -> None:
    tracer, limiter = (
        telemetry.tracers.get_tracer("test"),
        Limiter(name, Concurrency(1), store=store),
    )
    held = limiter.acquire_sync()
    with tracer.start_as_current_span("request") as request:
        # A wait of less than a millisecond has no span.
        released = threading.Timer(0.01, held.release)
        with limiter.acquire_sync(on_wait=lambda waiting: released.start()):
            pass
        parent = request.get_span_context().span_id
    [span] = telemetry.spans()
    assert span.parent is not None
    assert span.parent.span_id == parent


def test_a_span_ends_with_its_wait_however_late_the_hooks_run(memory: World) -> None:
    looked = threading.Event()

    def hook(event: object) -> None:
        looked.wait(long())

    add_hook(hook)  # before ours: it is called first
    telemetry = Telemetry()
    limiter = memory.limiter(Rate(1, per=10))

    async def two_calls() -> None:
        with telemetry.tracers.get_tracer("test").start_as_current_span("request"):
            for _ in range(2):
                async with limiter:
                    pass

    memory.run(two_calls())
    now = time_ns()
    looked.set()
    [span] = telemetry.spans()
    assert span.end_time is not None
    assert span.end_time <= now
    telemetry.stop()
    remove_hook(hook)


def test_a_wait_in_vain_is_a_span_with_its_outcome(name: str, telemetry: Telemetry) -> None:
    limiter = Limiter(name, Concurrency(1))

    def wait_in_vain() -> None:
        with (
            telemetry.tracers.get_tracer("test").start_as_current_span("request"),
            pytest.raises(MaxSleepExceededError),
        ):
            limiter.acquire_sync(max_sleep=0.02)

    with limiter:
        thread = threading.Thread(target=wait_in_vain)
        thread.start()
        thread.join()
    [span] = telemetry.spans()
    assert (span.attributes or {})["headgate.outcome"] == "too_long"


NO_PARENTS: dict[str, Callable[[], Any]] = {
    "none": lambda: trace.INVALID_SPAN,
    "remote": lambda: NonRecordingSpan(SpanContext(1, 2, True, TraceFlags(TraceFlags.SAMPLED))),
    "not sampled": lambda: TracerProvider(ALWAYS_OFF).get_tracer("test").start_span("request"),
}


@pytest.mark.parametrize("parent", NO_PARENTS)
def test_a_caller_without_a_recorded_span_gets_none(
    memory: World, telemetry: Telemetry, parent: str
) -> None:
    limiter = memory.limiter(Rate(1, per=10))

    async def two_calls() -> None:
        with trace.use_span(NO_PARENTS[parent]()):
            for _ in range(2):
                async with limiter:
                    pass

    memory.run(two_calls())
    assert telemetry.values("acquires", memory.name, "outcome") == {"passed": 1, "waited": 1}
    assert telemetry.spans() == []


def test_an_acquire_that_waits_less_than_a_millisecond_has_no_span(
    memory: World, telemetry: Telemetry
) -> None:
    limiter = memory.limiter(Rate(1, per=0.0005))

    async def three_calls() -> None:
        with telemetry.tracers.get_tracer("test").start_as_current_span("request"):
            for _ in range(3):
                async with limiter:
                    pass

    memory.run(three_calls())
    assert telemetry.values("acquire.wait_time", memory.name, "outcome") == {"waited": 2}
    assert telemetry.spans() == []
