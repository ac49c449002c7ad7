"""The real SDK of OpenTelemetry shows what the limiters of a process have done.

An exporter that sends over HTTP is in test_otlp.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import ExemplarFilter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from redis import Redis

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    QueueFullError,
    Quota,
    Rate,
    StoreError,
    Window,
    log_writer,
)
from headgate.counts import CALLS, WAITS
from headgate.http.feedback import Feedback
from headgate.http.redirects import depart
from headgate.http.token_estimates import Estimates
from headgate.telemetry import add_hook, opentelemetry, reading, remove_hook
from headgate.telemetry.opentelemetry import instrument
from tests.faults.absence import killed
from tests.faults.scene import keys_of
from tests.processes import LEAN, finished
from tests.servers import Server
from tests.telemetry.sdk import Telemetry
from tests.world import HOUR, World, long, renew_now, session_of, told, until, waiting


async def cancelled(limiter: Limiter) -> None:
    waiter = asyncio.create_task(limiter.acquire().__aenter__())
    await waiting(limiter, 1)
    waiter.cancel()
    await asyncio.wait([waiter])
    await waiting(limiter, 0)


# Acquires -----------------------------------------------------------------------------------------


@told
async def test_each_acquire_is_counted_by_its_outcome(world: World, telemetry: Telemetry) -> None:
    limiter = world.limiter(Concurrency(1), Window(100, HOUR, unit="tokens"))
    for _ in range(3):
        async with limiter.acquire(tokens=1):
            pass
    async with limiter.acquire(tokens=1):
        assert not await limiter.atry_acquire()
        with pytest.raises(MaxSleepExceededError):
            await limiter.acquire(max_sleep=0.01)
        with pytest.raises(CostExceedsCapacityError):
            await limiter.acquire(tokens=101)
        await cancelled(limiter)
        waiter = asyncio.create_task(limiter.acquire(tokens=1).__aenter__())
        await waiting(limiter, 1)
        with pytest.raises(QueueFullError):
            await world.limiter(Concurrency(1), *limiter.limits[1:], max_waiters=1).acquire()
    (await waiter).release()
    assert telemetry.values("acquires", world.name, "outcome") == {
        "passed": 4,
        "waited": 1,
        "not_now": 1,
        "too_long": 1,
        "never": 1,
        "queue_full": 1,
        "cancelled": 1,
    }


def test_an_outcome_that_never_happened_is_0(name: str, telemetry: Telemetry) -> None:
    """So its first time shows as an increase."""
    with Limiter(name, Concurrency(1)):
        pass
    rows = telemetry.rows("acquires", limiter=name)
    assert {row["headgate.outcome"]: value for row, value in rows} == {
        "passed": 1,
        **dict.fromkeys(("waited", "not_now", "too_long", "queue_full", "never"), 0),
        **dict.fromkeys(("cancelled", "store_error", "unlimited", "local"), 0),
    }


@pytest.mark.parametrize(
    ("mode", "outcome"), [("raise", "store_error"), ("open", "unlimited"), ("local", "local")]
)
def test_acquires_without_the_store_are_counted(
    own_server: Server, name: str, telemetry: Telemetry, mode: str, outcome: str
) -> None:
    processes = 2 if mode == "local" else None
    limiter = Limiter(
        *(name, Concurrency(2)),
        store=own_server.url,
        on_store_error=mode,
        processes=processes,
        retry_for=0,
    )
    with limiter:
        pass
    with killed(own_server):
        try:
            with limiter:
                pass
        except StoreError:
            assert mode == "raise"
        assert telemetry.values("acquires", name, "outcome") == {"passed": 1, outcome: 1}


@told
async def test_the_cost_is_counted_by_unit_with_later_charges(
    world: World, telemetry: Telemetry
) -> None:
    limiter = world.limiter(Window(100, HOUR), Window(5000, HOUR, unit="tokens"))
    for used in (700, 1200):
        async with limiter.acquire(tokens=1000) as permit:
            permit.settle(tokens=used)
    assert not await limiter.atry_acquire(tokens=5000)
    assert telemetry.values("cost", world.name, "unit") == {"requests": 2, "tokens": 2200}
    assert telemetry.values("cost.returned", world.name, "unit") == {"tokens": 300}


def test_only_acquires_that_queued_have_a_wait_time(memory: World, telemetry: Telemetry) -> None:
    """In virtual time the sums are exact."""
    limiter = memory.limiter(Rate(1, per=0.75))

    async def four_calls() -> None:
        for _ in range(3):
            async with limiter:
                pass
        with pytest.raises(MaxSleepExceededError):
            await limiter.acquire(max_sleep=0.1)

    memory.run(four_calls())
    [point] = (
        each
        for each in telemetry.collect()["headgate.acquire.wait_time"].data.data_points
        if each.attributes["headgate.limiter.name"] == memory.name
    )
    assert dict(point.attributes) == {
        "headgate.limiter.name": memory.name,
        "headgate.outcome": "waited",
    }
    assert (point.count, point.sum, point.explicit_bounds) == (2, 1.5, WAITS)


def test_a_collection_waits_for_the_hooks_of_earlier_waits(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting = threading.Event()

    def hook(event: object) -> None:
        collecting.wait(long())

    def flush(timeout: float) -> bool:
        collecting.set()
        return log_writer.flush(timeout)

    monkeypatch.setattr(opentelemetry, "flush", flush)
    add_hook(hook)  # before ours: it is called first
    telemetry = Telemetry()
    limiter = memory.limiter(Rate(1, per=10))

    async def two_calls() -> None:
        for _ in range(2):
            async with limiter:
                pass

    memory.run(two_calls())
    assert telemetry.values("acquire.wait_time", memory.name, "outcome") == {"waited": 1}
    telemetry.stop()
    remove_hook(hook)


def test_the_use_of_permits_is_timed_on_request(name: str, telemetry: Telemetry) -> None:
    with Limiter(f"{name}-untimed", Concurrency(2)):
        pass
    telemetry.again(use_time=True)
    limiter = Limiter(name, Concurrency(2))
    with limiter, limiter:
        pass
    assert telemetry.rows("permit.use_time", limiter=name) == [({"headgate.limiter.name": name}, 2)]
    assert telemetry.rows("permit.use_time", limiter=f"{name}-untimed") == []


@told
async def test_a_wait_that_was_in_vain_has_its_own_outcome(
    world: World, telemetry: Telemetry
) -> None:
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        await cancelled(limiter)
        with pytest.raises(MaxSleepExceededError):
            await limiter.acquire(max_sleep=world.beat)
    assert telemetry.values("acquire.wait_time", world.name, "outcome") == {
        "cancelled": 1,
        "too_long": 1,
    }


def test_the_waits_of_threads_add_up(store: object, name: str, telemetry: Telemetry) -> None:
    limiter = Limiter(name, Concurrency(1), store=store)

    def work(_: int) -> None:
        with limiter:
            pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(200)))
    outcomes = telemetry.values("acquires", name, "outcome")
    assert sum(outcomes.values()) == 200
    waited = {"waited": outcomes["waited"]} if "waited" in outcomes else {}
    assert telemetry.values("acquire.wait_time", name, "outcome") == waited


# States -------------------------------------------------------------------------------------------


@told
async def test_permits_and_waiters_of_the_process_and_the_fleet(
    world: World, telemetry: Telemetry
) -> None:
    limits = Concurrency(1), Rate(50, HOUR), Window(90, HOUR, unit="tokens")
    limiter = world.limiter(*limits, Quota(70, HOUR, unit="euros"))
    async with limiter.acquire(2, tokens=4, euros=5):
        waiter = asyncio.create_task(limiter.acquire().__aenter__())
        await waiting(limiter, 1)
        at = {"headgate.limiter.name": world.name}
        assert telemetry.rows("permit.count", limiter=world.name) == [(at, 1)]
        assert telemetry.rows("waiter.count", limiter=world.name) == [(at, 1)]
        assert telemetry.rows("queue.length", limiter=world.name) == [(at, 1)]
        assert telemetry.rows("pause.remaining", limiter=world.name) == [(at, 0)]
        usage = budgets(telemetry, "usage", world.name)
        limit = budgets(telemetry, "limit", world.name)
        assert {where: (usage[where], limit[where]) for where in usage} == {
            ("permits", "concurrency"): (1, 1),
            ("requests", "rate"): (2, 50),
            ("tokens", "window"): (4, 90),
            ("euros", "quota"): (5, 70),
        }
    (await waiter).release()


def budgets(telemetry: Telemetry, metric: str, name: str) -> dict[tuple[str, str], int]:
    rows = telemetry.rows(f"budget.{metric}", limiter=name)
    wanted = {"headgate.limiter.name", "headgate.unit", "headgate.limit.kind"}
    assert all(row.keys() == wanted for row, _ in rows)
    return {(row["headgate.unit"], row["headgate.limit.kind"]): value for row, value in rows}


def test_of_two_limits_alike_the_fuller_one_is_shown(name: str, telemetry: Telemetry) -> None:
    limiter = Limiter(name, Window(2, HOUR), Window(10, 24 * HOUR))
    with limiter:
        pass
    assert budgets(telemetry, "usage", name) == {("requests", "window"): 1}
    assert budgets(telemetry, "limit", name) == {("requests", "window"): 2}


def test_pauses_are_counted_by_reason_and_their_rest_is_shown(
    store: object, name: str, telemetry: Telemetry
) -> None:
    limiter = Limiter(name, Concurrency(2), store=store)
    with limiter.acquire() as permit:
        limiter.pause(100)
        Feedback().apply([(limiter, permit)], depart("host"), 429, {"retry-after": "900"})
        limiter.flush()
        assert telemetry.values("pauses", name, "reason") == {"caller": 1, "server": 1}
        [(where, seconds)] = telemetry.rows("pause.remaining", limiter=name)
        assert where == {"headgate.limiter.name": name}
        assert 800 < seconds <= 900
        limiter.resume()


def test_refusals_of_services_are_counted(name: str, telemetry: Telemetry) -> None:
    limiter = Limiter(name, Concurrency(2))
    with limiter.acquire() as permit:
        for status in (429, 429, 200):
            Feedback().apply([(limiter, permit)], depart("host"), status, {})
    [(where, count)] = telemetry.rows("http.refusals", limiter=name)
    verdict = where.pop("headgate.verdict")
    assert where == {"headgate.limiter.name": name, "http.response.status_code": 429}
    assert isinstance(verdict, str)
    assert count == 2


def test_the_error_of_token_estimates_is_shown(name: str, telemetry: Telemetry) -> None:
    estimates = Estimates()
    estimates.learn_input(name, characters=400, estimated=100, used=80)
    estimates.learn_output(name, estimated=150, used=100)
    [learned] = estimates.status()
    assert telemetry.rows("estimate.error", model=name) == [
        ({"headgate.model": name, "headgate.token.type": "input"}, learned.input_error),
        ({"headgate.model": name, "headgate.token.type": "output"}, learned.output_error),
    ]


def test_lost_leases_are_counted(
    redis_url: str, admin_url: str, name: str, telemetry: Telemetry
) -> None:
    limiter = Limiter(name, Concurrency(2), store=redis_url)

    async def lose() -> None:
        permit = await limiter.acquire()
        with Redis.from_url(admin_url) as admin:
            admin.delete(*keys_of(admin, name))
        renew_now(session_of(limiter))
        await until(lambda status: permit.lost, limiter)
        permit.release()

    at = {"headgate.limiter.name": name}
    with limiter:
        assert telemetry.rows("leases.lost", limiter=name) == [(at, 0)]
    asyncio.run(lose())
    assert telemetry.rows("leases.lost", limiter=name) == [(at, 1)]


# Stores -------------------------------------------------------------------------------------------


def of_server(telemetry: Telemetry, server: Server) -> dict[str, int]:
    """The calls to a server, by their error."""
    rows = telemetry.rows("store.call.duration")
    ours = [(row, count) for row, count in rows if row.get("server.port") == server.port]
    for row, _ in ours:
        wanted = {"db.system.name": "redis", "server.address": "127.0.0.1"}
        assert row.items() >= wanted.items()
        assert row.keys() - wanted.keys() <= {"server.port", "error.type"}
    return {row.get("error.type", ""): count for row, count in ours}


def test_a_store_that_goes_is_unavailable_and_its_calls_have_errors(
    own_server: Server, name: str, telemetry: Telemetry
) -> None:
    where = f"Redis at 127.0.0.1:{own_server.port}/0"
    options: dict[str, Any] = {"store": own_server.url, "retry_for": 0}
    limiter = Limiter(name, Concurrency(2), **options)
    Limiter(f"{name}-2", Concurrency(2), on_store_error="open", **options)
    modes = [
        {"headgate.store.name": where, "headgate.mode": "open"},
        {"headgate.store.name": where, "headgate.mode": "raise"},
    ]
    with limiter:
        pass
    assert telemetry.rows("store.available", store=where) == [(mode, 1) for mode in modes]
    assert of_server(telemetry, own_server).keys() == {""}
    assert budgets(telemetry, "usage", name) == {("permits", "concurrency"): 0}

    own_server.kill()
    with pytest.raises(StoreError), limiter:
        pass
    assert telemetry.rows("store.available", store=where) == [(mode, 0) for mode in modes]
    for metric in ("budget.usage", "budget.limit", "queue.length", "pause.remaining"):
        assert telemetry.rows(metric, limiter=name) == []
    assert telemetry.values("acquires", name, "outcome") == {"passed": 1, "store_error": 1}


def test_a_call_that_is_cut_off_has_an_error(
    own_server: Server, name: str, telemetry: Telemetry
) -> None:
    limiter = Limiter(name, Concurrency(2), store=own_server.url, retry_for=0)

    async def story() -> None:
        await (await limiter.acquire()).arelease()
        own_server.pause()
        asked = asyncio.create_task(limiter.acquire().__aenter__())
        await asyncio.sleep(0)
        own_server.kill()
        with pytest.raises(StoreError):
            await asked

    asyncio.run(story())
    errors = of_server(telemetry, own_server).keys() - {""}
    assert errors
    assert all(re.fullmatch(r"\w+", each) for each in errors)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("10.0.0.1:6379", {"server.address": "10.0.0.1"}),
        ("cache:7000", {"server.address": "cache", "server.port": 7000}),
        ("::1:7000", {"server.address": "::1", "server.port": 7000}),
        ("/run/redis.sock", {"server.address": "/run/redis.sock"}),
    ],
)
def test_a_server_has_the_attributes_of_the_conventions(
    server: str, address: dict[str, Any]
) -> None:
    event = opentelemetry.StoreCalled(server, 0.1, "")
    assert opentelemetry.call_attributes(event) == {"db.system.name": "redis", **address}


def test_the_buckets_of_calls_begin_below_a_millisecond(
    redis_url: str, name: str, telemetry: Telemetry
) -> None:
    with Limiter(name, Concurrency(2), store=redis_url):
        pass
    [*points] = telemetry.collect()["headgate.store.call.duration"].data.data_points
    assert {each.explicit_bounds for each in points} == {CALLS}


def test_the_fleet_is_read_once_for_each_collection(
    name: str, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_budgets = reading.read_budgets

    def read() -> Any:
        reads.append(len(reads))
        return read_budgets()

    monkeypatch.setattr(reading, "read_budgets", read)
    with Limiter(name, Concurrency(2)):
        for times in (1, 2, 3):
            assert telemetry.collect().keys() >= {"headgate.budget.usage", "headgate.queue.length"}
            assert len(reads) == times


def test_a_part_that_cannot_be_read_is_left_out_and_logged(
    name: str,
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read() -> Any:
        raise ValueError("a broken store")

    monkeypatch.setattr(reading, "read_budgets", read)
    with Limiter(name, Concurrency(2)):
        found = telemetry.collect()
    assert "headgate.permit.count" in found
    assert "headgate.budget.usage" not in found
    assert [each.getMessage() for each in caplog.records] == [
        "A collection of OpenTelemetry has left out metrics: read_fleet has failed."
    ]


# Keys ---------------------------------------------------------------------------------------------


@told
async def test_a_key_has_series_only_if_keys_names_it(world: World, telemetry: Telemetry) -> None:
    telemetry.again(keys=lambda name, key: "gold" if key.startswith("g") else None)
    limiter = world.limiter(Concurrency(1))
    for key in ("g1", "g2", "rest"):
        async with limiter[key]:
            waiter = asyncio.create_task(limiter[key].acquire().__aenter__())
            await waiting(limiter[key], 1)
        (await waiter).release()

    whole = {"headgate.limiter.name": world.name}
    gold = whole | {"headgate.limiter.key": "gold"}
    passed, waited = {"headgate.outcome": "passed"}, {"headgate.outcome": "waited"}
    counts = [row for row in telemetry.rows("acquires", limiter=world.name) if row[1]]
    assert counts == [
        (gold | passed, 2),
        (gold | waited, 2),
        (whole | passed, 1),
        (whole | waited, 1),
    ]
    assert telemetry.rows("acquire.wait_time", limiter=world.name) == [
        (gold | waited, 2),
        (whole | waited, 1),
    ]
    of_keys = {"headgate.unit": "permits", "headgate.limit.kind": "concurrency"}
    shown = [row for row, _ in telemetry.rows("budget.limit", limiter=world.name)]
    assert gold | of_keys in shown


def test_without_keys_no_key_is_an_attribute(name: str, telemetry: Telemetry) -> None:
    limiter = Limiter(name, Concurrency(1))
    for key in ("a", "b"):
        with limiter[key]:
            pass
    assert telemetry.values("acquires", name, "outcome") == {"passed": 2}
    assert "headgate.limiter.key" not in str(telemetry.rows("budget.usage", limiter=name))


# Harm ---------------------------------------------------------------------------------------------


class Recorders(ExemplarFilter):
    """The SDK asks it about each measurement, in the thread that records it."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def should_sample(self, *_: Any) -> bool:
        self.threads.add(threading.current_thread().name)
        return False


def test_no_caller_calls_the_sdk(store: object, name: str) -> None:
    recorders = Recorders()
    telemetry = Telemetry(exemplar_filter=recorders)
    limiter = Limiter(name, Concurrency(1), store=store)

    def work(_: int) -> None:
        for _ in range(20):
            with limiter:
                pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert log_writer.flush()
    telemetry.stop()
    assert recorders.threads <= {"headgate-log"}


class Broken(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise ValueError("a broken exporter")


class BrokenProcessor(SimpleSpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise ValueError("a broken processor")


@pytest.mark.parametrize("processor", [SimpleSpanProcessor, BrokenProcessor])
def test_exporters_and_hooks_that_raise_do_no_harm(
    memory: World, capsys: pytest.CaptureFixture[str], processor: type[SimpleSpanProcessor]
) -> None:
    def hook(event: object) -> None:
        if getattr(event, "limiter", None) == memory.name:
            raise ValueError("a broken hook")

    add_hook(hook)  # before ours: it is called first
    telemetry = Telemetry()
    broken = TracerProvider(shutdown_on_exit=False)
    broken.add_span_processor(processor(Broken()))
    telemetry.tracers = broken
    telemetry.again()
    limiter = memory.limiter(Rate(1, per=10))

    async def three_calls() -> None:
        with trace.use_span(broken.get_tracer("test").start_span("request")):
            for _ in range(3):
                async with limiter:
                    pass

    memory.run(three_calls())
    assert telemetry.values("acquire.wait_time", memory.name, "outcome") == {"waited": 2}
    telemetry.stop()
    remove_hook(hook)
    assert capsys.readouterr().err.count("ValueError: a broken hook") == 2


# On and off ---------------------------------------------------------------------------------------


def test_a_second_instrument_is_an_error_that_names_the_way_out(telemetry: Telemetry) -> None:
    with pytest.raises(RuntimeError, match=r"call uninstrument\(\) of the object"):
        instrument(telemetry.provider)


def test_after_uninstrument_nothing_is_reported_and_instrument_goes_on(
    name: str, telemetry: Telemetry
) -> None:
    limiter = Limiter(name, Concurrency(1))
    with limiter:
        pass
    telemetry.stop()
    telemetry.stop()
    assert telemetry.collect() == {}
    telemetry.again()
    with limiter:
        pass
    assert telemetry.values("acquires", name, "outcome")["passed"] >= 2


def test_another_exporter_goes_on_counting_after_uninstrument(name: str) -> None:
    reading.switch_on()
    Telemetry().stop()
    with Limiter(name, Concurrency(1)):
        pass
    [found] = [each for each in reading.read_acquires() if each.name == name]
    assert found.outcomes["passed"] == 1
    reading.switch_off()


def test_after_uninstrument_the_fast_path_does_not_count(name: str) -> None:
    reading.switch_off()  # of the fixture
    Telemetry().stop()
    limiter = Limiter(name, Concurrency(1))
    for _ in range(5):  # the first acquire declares the limits, and is no fast one
        with limiter:
            pass
    reading.switch_on()
    [found] = [each for each in reading.read_acquires() if each.name == name]
    assert found.outcomes["passed"] <= 1


def test_two_providers_one_after_the_other(name: str, telemetry: Telemetry) -> None:
    telemetry.stop()
    other = Telemetry()
    with Limiter(name, Concurrency(1)):
        pass
    assert other.values("acquires", name, "outcome") == {"passed": 1}
    assert telemetry.collect() == {}
    other.stop()


GLOBAL = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from headgate import Concurrency, Limiter
from headgate.telemetry.opentelemetry import instrument

def passed():
    [found] = (
        point.value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics if metric.name == "headgate.acquires"
        for point in metric.data.data_points if point.attributes["headgate.outcome"] == "passed"
    )
    return found

on = instrument()
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
limiter = Limiter("api", Concurrency(1))
with limiter: pass
print(passed())
for provider in (None, metrics.get_meter_provider()):
    on.uninstrument()
    on = instrument(provider)
    with limiter: pass
    print(passed())
"""


def test_the_global_provider_may_be_set_later_and_is_one() -> None:
    seen = f"import sys; sys.path.remove({str(LEAN)!r})"
    assert finished(f"{seen}\n{GLOBAL}") == "1\n2\n3\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"meter_provider": "otel"}, r"meter_provider='otel'\): it is no MeterProvider"),
        ({"tracer_provider": 3}, r"tracer_provider=3\): it is no TracerProvider"),
        ({"keys": "gold"}, r"keys='gold'\): keys is a function"),
        ({"use_time": 1}, r"use_time=1\)"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        instrument(**arguments)
    Telemetry().stop()  # nothing is switched on
