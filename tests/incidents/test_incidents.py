"""Five staged incidents of a fleet, each traced from its symptom to its cause.

Real processes wait or fail on a real server. A test then reads only an operator's tools: the
commands of docs/in-production.md, metrics and log lines. It ends with the guide's remedy.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis.exceptions import OutOfMemoryError

from headgate import Concurrency
from tests.http.service import Service
from tests.incidents.fleet import Fleet, fleet_on
from tests.machine import scaled
from tests.servers import Server

pytestmark = pytest.mark.proof  # five seconds each, because each starts up to four processes
LEASE = scaled(3.0)  # seconds


@pytest.fixture
def fleet(own_server: Server) -> Iterator[Fleet]:
    with fleet_on(own_server) as fleet:
        yield fleet


def test_everything_waits_because_an_answer_of_the_service_has_paused_the_fleet(
    fleet: Fleet,
) -> None:
    asking, waiting = (fleet.process("api", "100/minute") for _ in range(2))
    with Service() as service:
        service.answers.append((429, {"Retry-After": "600"}))
        asking.does(f"get {service.url}/says", says="got 429")
    asking.until("limiter 'api' is paused for 10.0 min, because of a service's answer")
    waiting.does("wait requests=1", says="waits")

    shown = fleet.find("show api")
    assert (shown["waiting"], shown["holders"]) == (1, [])
    assert 500 < shown["paused"] <= 600
    assert shown["limits"][0]["left"] > 0
    assert 500 < fleet.metric("headgate_pause_remaining_seconds", limiter="api") <= 600
    assert asking.metric("headgate_pauses_total", limiter="api", reason="server") == 1
    assert asking.metric("headgate_http_refusals_total", limiter="api", status_code="429") == 1
    assert waiting.metric("headgate_pauses_total", limiter="api") == 0

    assert fleet.command("resume api --yes").code == 0
    waiting.until("inside")


def test_everything_waits_because_one_hung_process_holds_all_permits(fleet: Fleet) -> None:
    hung, waiting = (fleet.process("jobs", Concurrency(3, lease=LEASE)) for _ in range(2))
    hung.does("hold 3", says="holds")
    waiting.does("wait permits=1", says="waits")

    shown = fleet.find("show jobs")
    assert (shown["waiting"], shown["paused"], shown["retry_after"]) == (1, 0, None)
    process = {"host": socket.gethostname(), "pid": hung.pid, "program": "operated.py"}
    assert [each["process"] for each in shown["holders"]] == [process] * 3
    assert all(each["lease_left"] > 0 for each in shown["holders"])
    assert hung.metric("headgate_permits", limiter="jobs") == 3

    hung.kill()
    waiting.until("inside")


def test_limits_change_back_and_forth_because_two_deployments_disagree(fleet: Fleet) -> None:
    old, new = fleet.process("api", "100/hour"), fleet.process("api", "20/hour")
    old.does("hold 1", says="holds")
    new.does("hold 1", says="holds")
    old.does("hold 1", says="limiter 'api' has other limits now (fleet): 20 requests")

    diagnosis = fleet.find("doctor")
    (found,) = diagnosis["findings"]
    assert (found["check"], found["subject"]) == ("declarations", "limiter 'api'")
    assert "100 in any hour was replaced by 20 in any hour" in found["text"]
    assert "headgate set" in found["remedy"]

    assert fleet.command("set api 50/hour --yes").code == 0
    new.does("hold 1", says="holds")
    (limit,) = fleet.find("show api")["limits"]
    assert limit["capacity"] == 50


def test_everything_waits_because_one_settlement_has_left_a_debt(fleet: Fleet) -> None:
    limits = "10k tokens/min burst 10k", "100/minute"
    large, waiting = (fleet.process("llm", *limits) for _ in range(2))
    large.does("settle 500000", says="settled")
    waiting.does("wait tokens=100", says="waits")

    shown = fleet.find("show llm")
    assert (shown["paused"], shown["holders"], shown["waiting"]) == (0, [], 1)
    tokens, requests = shown["limits"]
    assert (tokens["unit"], tokens["capacity"]) == ("tokens", 10_000)
    assert tokens["left"] < -480_000
    assert shown["retry_after"] > 2_800  # 49 minutes' worth of tokens
    assert requests["left"] > 0
    usage = {"limiter": "llm", "unit": "tokens"}
    assert fleet.metric("headgate_budget_usage", **usage) > 490_000
    assert large.metric("headgate_cost_total", **usage) >= 500_000

    assert fleet.command("reset llm --yes").code == 0
    waiting.until("inside")


def test_too_many_run_at_once_because_the_server_has_evicted_the_state(fleet: Fleet) -> None:
    first, second = (fleet.process("jobs", Concurrency(1, lease=LEASE)) for _ in range(2))
    first.does("hold 1", says="holds")
    evict(fleet.server, "headgate:{jobs}")
    second.does("hold 1", says="holds")

    first.until("1 held permit(s) of limiter 'jobs' lost the lease")
    assert first.metric("headgate_leases_lost_total", limiter="jobs") == 1
    findings = {each["check"]: each for each in fleet.find("doctor")["findings"]}
    assert findings["eviction"]["severity"] == "serious"
    assert "volatile-lru" in findings["eviction"]["text"]
    assert "noeviction" in findings["eviction"]["remedy"]


def evict(server: Server, key: str) -> None:
    """Another program fills the server's memory, until the server drops `key` by its policy."""
    admin = server.admin
    admin.config_set("maxmemory-policy", "volatile-lru")
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 500_000)
    with suppress(OutOfMemoryError):  # nothing is left that it may drop
        for number in range(1000):
            admin.set(f"another-program:{number}", "x" * 10_000)
    admin.config_set("maxmemory", "100mb")
    assert not admin.exists(key)
