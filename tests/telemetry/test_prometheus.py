"""A registry of prometheus-client shows the limiters of the process, in Prometheus' text format.

A fleet that a real Prometheus scrapes is in test_prometheus_fleet.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headgate import Concurrency, Limiter, Rate, Window
from headgate.http.requests import limit
from headgate.http.token_estimates import Estimates
from headgate.telemetry import prometheus, reading
from headgate.telemetry.prometheus import collector
from tests.faults.scene import eventually
from tests.http.service import Service
from tests.processes import PATIENCE, finished
from tests.recipes.programs import Program
from tests.servers import Server, free_port
from tests.world import World, at_rest, told, waiting

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/telemetry.md"
EMPTY = {"read_fleet": reading.Fleet({}, {}, {})}
PROGRAM = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = dict(PROGRAM.findall(PAGE.read_text()))


class Scraped:
    """The series of one scrape, by name and labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.text = generate_latest(registry).decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def of(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """The values of `name` with these labels, by the values of the other labels.

        Those stand in the order of the labels' names.
        """
        return {
            tuple(value for label, value in each.labels.items() if label not in labels): each.value
            for each in self.samples
            if each.name == f"headgate_{name}" and labels.items() <= each.labels.items()
        }


class Registry(CollectorRegistry):
    def scrape(self) -> Scraped:
        return Scraped(self)


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    registry.register(collector())
    yield registry
    reading.switch_off()


def again(registry: CollectorRegistry, **options: Any) -> None:
    """Register another collector in place of the first."""
    for each in list(registry._collector_to_names):
        registry.unregister(each)
    reading.switch_off()
    registry.register(collector(**options))


# What a process does ------------------------------------------------------------------------------


@told
async def test_acquires_are_counted_by_outcome(world: World, registry: Registry) -> None:
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        assert not await limiter.atry_acquire()
        waiter = asyncio.create_task(limiter.acquire().__aenter__())
        await waiting(limiter, 1)
        found = registry.scrape()
        assert found.of("permits", limiter=world.name) == {(): 1}
        assert found.of("waiters", limiter=world.name) == {(): 1}
        assert found.of("queue_length", limiter=world.name) == {(): 1}
    (await waiter).release()
    await at_rest(limiter)
    outcomes = registry.scrape().of("acquires_total", limiter=world.name)
    assert {key: n for key, n in outcomes.items() if n} == {
        ("passed",): 1,
        ("waited",): 1,
        ("not_now",): 1,
    }
    assert outcomes["cancelled",] == 0  # so that its first one shows as an increase


def test_the_waits_are_a_histogram(memory: World, registry: Registry) -> None:
    limiter = memory.limiter(Rate(1, per=0.75))

    async def three_calls() -> None:
        for _ in range(3):
            async with limiter:
                pass

    memory.run(three_calls())
    found, where = registry.scrape(), {"limiter": memory.name, "outcome": "waited"}
    buckets = found.of("acquire_wait_time_seconds_bucket", **where)
    assert (buckets["0.5",], buckets["1.0",], buckets["300.0",], buckets["+Inf",]) == (0, 2, 2, 2)
    assert list(buckets.values()) == sorted(buckets.values())
    assert found.of("acquire_wait_time_seconds_count", **where) == {(): 2}
    assert found.of("acquire_wait_time_seconds_sum", **where) == {(): 1.5}


@told
async def test_the_cost_is_counted_by_unit(world: World, registry: Registry) -> None:
    limiter = world.limiter("1000/hour", Rate(5000, per=3600, unit="tokens"))
    for counted in (700, 1200):
        async with limiter.acquire(tokens=1000) as permit:
            permit.settle(tokens=counted)
    found = registry.scrape()
    assert found.of("cost_total", limiter=world.name) == {("requests",): 2, ("tokens",): 2200}
    assert found.of("cost_returned_total", limiter=world.name) == {
        ("requests",): 0,
        ("tokens",): 300,
    }


@told
async def test_pauses_are_counted_and_their_rest_is_shown(world: World, registry: Registry) -> None:
    limiter = world.limiter("1000/hour")
    async with limiter:
        pass
    assert registry.scrape().of("pause_remaining_seconds", limiter=world.name) == {(): 0}
    await limiter.apause(3600)
    found = registry.scrape()
    assert found.of("pauses_total", limiter=world.name) == {("caller",): 1, ("server",): 0}
    assert 3500 < found.of("pause_remaining_seconds", limiter=world.name)[()] <= 3600


def test_a_refusal_by_a_service_has_its_status(registry: Registry, name: str) -> None:
    with Service() as service, requests.Session() as session:
        service.answers.append((429, {"Retry-After": "3600"}))
        limit(session, Limiter(name, "1000/hour")).get(f"{service.url}/says")
    found = registry.scrape()
    [(labels, count)] = found.of("http_refusals_total", limiter=name).items()
    assert (labels[0], count) == ("429", 1)
    assert found.of("pauses_total", limiter=name)["server",] == 1


def test_the_time_of_permits_is_a_histogram_of_programs_that_ask(
    registry: Registry, name: str
) -> None:
    with Limiter(name, Concurrency(3)):
        pass
    assert registry.scrape().of("permit_use_time_seconds_count", limiter=name) == {}
    again(registry, use_time=True)
    with Limiter(name, Concurrency(3)):
        pass
    assert registry.scrape().of("permit_use_time_seconds_count", limiter=name) == {(): 1}


def test_the_error_of_the_estimates_is_a_share(registry: Registry, name: str) -> None:
    estimates = Estimates()
    estimates.learn_input(name, 4000, 900, 1000)
    errors = registry.scrape().of("estimate_error_ratio", model=name)
    assert errors == {("input",): pytest.approx(0.1)}


# What the fleet does ------------------------------------------------------------------------------


@told
async def test_each_budget_has_its_usage_and_its_limit(world: World, registry: Registry) -> None:
    limiter = world.limiter(Concurrency(3), "1000/hour", Rate(5000, per=3600, unit="tokens"))
    async with limiter.acquire(tokens=2000):
        found = registry.scrape()
    assert found.of("budget_usage", limiter=world.name) == {
        ("concurrency", "permits"): 1,
        ("window", "requests"): 1,
        ("rate", "tokens"): 2000,
    }
    assert found.of("budget_limit", limiter=world.name) == {
        ("concurrency", "permits"): 3,
        ("window", "requests"): 1000,
        ("rate", "tokens"): 5000,
    }


@told
async def test_of_two_limits_of_one_kind_the_fullest_is_shown(
    world: World, registry: Registry
) -> None:
    limiter = world.limiter(Window(10, per=3600), Window(100, per=7200), Window(1000, per=9000))
    async with limiter:
        found = registry.scrape()
    assert found.of("budget_usage", limiter=world.name) == {("window", "requests"): 1}
    assert found.of("budget_limit", limiter=world.name) == {("window", "requests"): 10}


@told
async def test_a_scrape_declares_nothing(world: World, registry: Registry) -> None:
    limiter = world.limiter(Concurrency(3))
    found = registry.scrape()
    assert found.of("budget_limit", limiter=world.name) == {}
    async with world.limiter(Concurrency(5)):
        assert registry.scrape().of("budget_limit", limiter=world.name) == {
            ("concurrency", "permits"): 5
        }
    assert (await limiter.astatus()).limits[0].capacity == 5


# Keys ---------------------------------------------------------------------------------------------


@told
async def test_a_key_has_series_only_if_keys_maps_it(world: World, registry: Registry) -> None:
    again(registry, keys=lambda name, key: {"7": "customer 7"}.get(key))
    limiter = world.limiter(Concurrency(3))
    for key in ("7", "8"):
        async with limiter[key]:
            pass
    async with limiter:
        found = registry.scrape()
    name = world.name
    assert found.of("acquires_total", limiter=name, key="customer 7")["passed",] == 1
    assert found.of("acquires_total", limiter=name)["passed",] == 2  # "8" counts as its name
    assert found.of("budget_usage", limiter=name) == {
        ("concurrency", "permits"): 1,
        ("customer 7", "concurrency", "permits"): 0,
    }


def test_without_keys_no_series_has_a_key(registry: Registry, name: str) -> None:
    with Limiter(name, Concurrency(3))["secret"]:
        found = registry.scrape()
    assert found.of("acquires_total", limiter=name)["passed",] == 1
    assert "secret" not in found.text
    own = [line for line in found.text.splitlines() if name in line]
    assert own
    assert [line for line in own if 'key="' in line] == []


def test_beyond_a_hundred_labels_keys_are_other(registry: Registry, name: str) -> None:
    again(registry, keys=lambda name, key: key)
    limiter = Limiter(name, Concurrency(3))
    for key in range(120):
        with limiter[str(key)]:
            pass
    found = registry.scrape()
    passed = found.of("acquires_total", limiter=name, outcome="passed")
    assert passed["other",] == 20
    assert sum(passed.values()) == 120
    assert len(found.of("budget_usage", limiter=name)) == 100  # not those that are "other"


def test_a_scrape_asks_for_a_hundred_keys_of_a_name_at_most(
    registry: Registry, redis_url: str, name: str
) -> None:
    """A status is work for the server. Any number of keys may share a label."""
    again(registry, keys=lambda name, key: "free")
    limiter = Limiter(name, Concurrency(3), store=redis_url)
    for key in range(120):
        with limiter[str(key)]:
            pass
    assert registry.scrape().of("acquires_total", limiter=name, key="free")["passed",] == 120
    assert len([each for each in reading.read_budgets() if each.name == name]) == 100


def test_keys_that_fail_are_other_and_have_no_budget(registry: Registry, name: str) -> None:
    again(registry, keys=lambda name, key: {}[key])
    with Limiter(name, Concurrency(3))["7"]:
        found = registry.scrape()
    assert found.of("acquires_total", limiter=name, key="other")["passed",] == 1
    assert found.of("budget_usage", limiter=name) == {}


def test_keys_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=re.escape("collector(keys='api'): keys is a function")):
        collector(keys="api")  # type: ignore[arg-type]


# Stores -------------------------------------------------------------------------------------------


def test_calls_to_a_server_are_timed(own_server: Server, registry: Registry, name: str) -> None:
    with Limiter(name, Concurrency(3), store=own_server.user_url):
        found = registry.scrape()
    place = f"127.0.0.1:{own_server.port}"
    calls = found.of("store_call_duration_seconds_count", server=place)
    assert calls["",] >= 2
    assert found.of("store_call_duration_seconds_bucket", server=place, le="+Inf") == calls
    assert found.of("store_available", store=f"Redis at {place}/0") == {("raise",): 1}


def test_two_stores_of_one_server_share_its_calls(
    own_server: Server, registry: Registry, name: str
) -> None:
    second = f"{own_server.url.removesuffix('/0')}/1"
    for url in (own_server.user_url, f"{own_server.user_url}?socket_timeout=9", second):
        with Limiter(name, Concurrency(3), store=url):
            pass
    found, place = registry.scrape(), f"127.0.0.1:{own_server.port}"
    series = [(each.name, str(each.labels)) for each in found.samples]
    assert len(series) == len(set(series))  # Prometheus drops a scrape with two equal series
    calls = [each.calls[place, ""] for each in reading.read_stores() if place in each.name]
    assert len(calls) == 2
    assert found.of("store_call_duration_seconds_count", server=place) == {
        ("",): sum(sum(each.counts) for each in calls)
    }


def test_a_store_that_stands_still_costs_a_scrape_about_a_second(
    own_server: Server, registry: Registry, slack: Callable[[], float], name: str
) -> None:
    limiter = Limiter(name, Concurrency(3), store=own_server.user_url)
    with limiter:
        own_server.pause()
        start = monotonic()
        found = registry.scrape()
        assert monotonic() - start < 1 + slack()
        assert found.of("budget_usage", limiter=name) == {}
        assert found.of("queue_length", limiter=name) == {}
        assert found.of("acquires_total", limiter=name)["passed",] == 1
        assert found.of("permits", limiter=name) == {(): 1}
        own_server.resume()
    assert registry.scrape().of("budget_usage", limiter=name) == {("concurrency", "permits"): 0}


async def test_a_store_is_not_available_until_it_answers_again(
    own_server: Server, registry: Registry, name: str
) -> None:
    with Limiter(name, Concurrency(3), store=own_server.user_url):
        pass
    store = f"Redis at 127.0.0.1:{own_server.port}/0"

    def available() -> float:
        return registry.scrape().of("store_available", store=store)["raise",]

    assert available() == 1
    own_server.kill()
    assert available() == 0
    own_server.start()
    await eventually(lambda: available() == 1)
    await eventually(lambda: registry.scrape().of("budget_usage", limiter=name))


# The scrape ---------------------------------------------------------------------------------------


def test_a_registration_does_not_scrape(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not even with a registry that describes each collector by collecting from it."""
    scraped: list[str] = []
    parts = [name for name in vars(prometheus) if name.startswith("read_")]
    for part in parts:
        monkeypatch.setattr(
            prometheus, part, lambda part=part: scraped.append(part) or EMPTY.get(part, {})
        )
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector())
    assert scraped == []
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector())
    generate_latest(registry)
    assert sorted(scraped) == sorted(parts)
    reading.switch_off()
    reading.switch_off()


def test_a_part_that_cannot_be_read_is_left_out_and_logged(
    registry: Registry,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(prometheus, "read_fleet", fail)
    with Limiter(name, Concurrency(3)):
        found = registry.scrape()
    assert found.of("acquires_total", limiter=name)["passed",] == 1
    assert found.of("budget_usage") == {}
    [record] = [each for each in caplog.records if each.headgate_event == "scrape"]
    assert "left out the metrics of budgets" in record.getMessage()
    assert record.exc_info


def test_any_name_is_a_label(registry: Registry) -> None:
    name = 'a "name" with \\ and\na second line, ünïcode and {braces}'
    with Limiter(name, Concurrency(3)):
        assert registry.scrape().of("permits", limiter=name) == {(): 1}


async def test_a_scrape_may_come_from_an_event_loop(
    redis_url: str, registry: Registry, name: str
) -> None:
    """An ASGI application scrapes in the loop whose tasks use the limiter."""
    async with Limiter(name, Concurrency(3), store=redis_url):
        assert registry.scrape().of("budget_usage", limiter=name) == {("concurrency", "permits"): 1}


def test_threads_may_scrape_at_once(redis_url: str, registry: Registry, name: str) -> None:
    limiters = [Limiter(name, Concurrency(8)), Limiter(name, Concurrency(8), store=redis_url)]

    def use_and_scrape(number: int) -> Scraped:
        for limiter in limiters:
            with limiter:
                pass
        return registry.scrape()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use_and_scrape, range(24)))
    assert registry.scrape().of("acquires_total", limiter=name)["passed",] == 48
    assert registry.scrape().of("permits", limiter=name) == {(): 0}


FORK = """
import os, sys
from prometheus_client import CollectorRegistry
from headgate import Concurrency, Limiter
from headgate.telemetry.prometheus import collector

registry = CollectorRegistry()
registry.register(collector())
limiters = [Limiter("memory", Concurrency(3)), Limiter("redis", Concurrency(3), store=sys.argv[1])]

def value(name, **labels):
    found = registry.get_sample_value(name, labels)
    return None if found is None else int(found)

def show(who):
    for name in ("memory", "redis"):
        print(
            who,
            name,
            value("headgate_acquires_total", limiter=name, outcome="passed"),
            value("headgate_permits", limiter=name),
            value("headgate_budget_usage", limiter=name, unit="permits", kind="concurrency"),
            flush=True,
        )

for limiter in limiters:
    with limiter:
        pass
held = [limiter.acquire_sync() for limiter in limiters]
show("parent")
child = os.fork()
if child == 0:
    show("child")
    with limiters[0], limiters[1]:
        show("child inside")
    os._exit(0)
os.waitpid(child, 0)
for permit in held:
    permit.release()
"""


def test_the_child_of_a_fork_reports_itself(redis_url: str) -> None:
    """gunicorn registers in the parent, and scrapes in the children. The counts go on from the
    parent's. Its permits stay there.
    """
    assert finished(FORK, redis_url).splitlines() == [
        "parent memory 2 1 1",  # acquires, permits, usage of the fleet
        "parent redis 2 1 1",
        "child memory 2 0 0",
        "child redis 2 0 1",
        "child inside memory 3 1 1",
        "child inside redis 3 1 2",
    ]


# The documents ------------------------------------------------------------------------------------


def test_the_page_lists_all_metrics_with_their_labels() -> None:
    rows = re.findall(r"^\| `(headgate_\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    kinds = {"CounterMetricFamily": "_total"}
    assert {name: re.findall(r"`(\w+)`", labels) for name, labels in rows} == {
        f"{name}{kinds.get(kind.__name__, '')}": list(labels)
        for name, (kind, labels, _) in prometheus.FAMILIES.items()
    }


USE = """
from headgate import Limiter
with Limiter("github", "5000/hour"):
    pass
"""


@pytest.mark.parametrize(
    ("page", "program", "use"),
    [
        ("docs/telemetry.md", "worker.py", ""),
        ("docs/in-production.md", "metrics.py", USE),
        ("README.md", "metrics.py", USE),
    ],
)
def test_the_lines_of_a_page_serve_the_metrics(page: str, program: str, use: str) -> None:
    port, programs = free_port(), dict(PROGRAM.findall((ROOT / page).read_text()))
    look = f"""
from urllib.request import urlopen
print(urlopen("http://127.0.0.1:{port}/metrics").read().decode())
"""
    said = finished(programs[program].replace("9464", f"{port}") + use + look)
    assert 'headgate_acquires_total{limiter="github",outcome="passed"} 1.0' in said


def test_the_keys_of_the_page_are_plans(registry: Registry, name: str) -> None:
    exec(PROGRAMS["keys.py"], {})
    limiter = Limiter(name, Concurrency(3))
    for key in ("17", "99"):
        with limiter[key]:
            pass
    passed = registry.scrape().of("acquires_total", limiter=name, outcome="passed")
    assert passed == {("free",): 1, (): 1}
    reading.switch_off()


APPLICATION = """
from prometheus_client import REGISTRY
from headgate import Concurrency, Limiter
from headgate.telemetry.prometheus import collector

REGISTRY.register(collector())
limiter = Limiter("api", Concurrency(3))

def application(environ, start_response):
    with limiter:
        start_response("200 OK", [])
        return [b""]
"""


@pytest.mark.proof
def test_each_worker_of_gunicorn_has_a_port_as_on_the_page(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    (tmp_path / "site_.py").write_text(APPLICATION)
    conf = tmp_path / "conf.py"
    text = PROGRAMS["gunicorn_conf.py"]
    assert "range(9464, 9472)" in text
    conf.write_text(text.replace("range(9464, 9472)", f"{ports}"))
    options = f"--preload --workers 2 --bind 127.0.0.1:0 --config {conf} --chdir {tmp_path}"
    with Program("-m", "gunicorn", *options.split(), "site_:application") as server:
        url = server.says(r"Listening at: (http://[\d.:]+)")[1]
        asyncio.run(eventually(lambda: len(passed(ports)) == 2))
        for _ in range(20):
            assert requests.get(url, timeout=PATIENCE).status_code == 200
        assert sum(passed(ports)) == 20


def passed(ports: list[int]) -> list[float]:
    """The acquires that each worker has counted."""
    return [count for port in ports if (count := passed_at(port)) is not None]


def passed_at(port: int) -> float | None:
    """The acquires of the worker with this port, if there is one."""
    try:
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).text
    except requests.ConnectionError:
        return None
    found = re.search(r'acquires_total\{limiter="api",outcome="passed"\} ([\d.]+)', text)
    return float(found[1]) if found else 0.0
