"""A fleet under load, scraped by a real Prometheus: each panel and each alert has data.

The expressions are those of telemetry/grafana.json and telemetry/alerts.yml themselves.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from redis import Redis
from ruamel.yaml import YAML

from tests.cli.command import exporting
from tests.http.service import Service
from tests.machine import scaled
from tests.processes import Running, running
from tests.servers import Server, free_port
from tests.telemetry.prometheus_server import Prometheus, prometheus, promtool

FOLDER = Path(__file__).parents[2] / "telemetry"
ALERTS = FOLDER / "alerts.yml"
PROCESSES = 4
LONG = scaled(90.0)  # seconds until each series has two scrapes, and each event has happened
COMPARISON = re.compile(r"\s*(?:==|>=?|<=?)\s*[\d.]+\s*$")  # at the end of an alert
OF_FLEET = re.compile(
    "headgate_(budget_usage|budget_limit|queue_length|pause_remaining_seconds|store_available)"
)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    return found


def panels() -> dict[str, str]:
    """The expressions of the panels as Grafana would send them, by title and letter."""
    return {
        f"{panel['title']}, {target['refId']}": target["expr"]
        .replace("$limiter", ".*")
        .replace("$__rate_interval", "5s")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    }


def rules() -> list[dict[str, Any]]:
    [group] = YAML(typ="safe").load(ALERTS)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def alerts() -> dict[str, str]:
    """The expressions of the alerts, by name, without the comparison: all may be well."""
    return {rule["alert"]: COMPARISON.sub("", rule["expr"]) for rule in rules()}


@dataclass
class Fleet:
    prometheus: Prometheus
    store: str
    redis: Redis
    service: Service
    ports: list[int]

    def go_on(self) -> None:
        """A second of its life: the service refuses a call, and a lease is lost."""
        self.service.answers.append((429, {"Retry-After": "0"}))
        for key in self.redis.scan_iter("headgate:{leased}*"):
            self.redis.delete(key)
        time.sleep(1.0)

    def scraped(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.ports[0]}/metrics") as reply:
            text: str = reply.read().decode()
        return text


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    server, ports = Server(), [free_port() for _ in range(PROCESSES)]
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        service = stack.enter_context(Service())
        processes: list[Running] = [
            stack.enter_context(running("metered", server.user_url, service.url, port))
            for port in ports
        ]
        assert [process.line() for process in processes] == ["ready"] * PROCESSES
        targets = [f"127.0.0.1:{port}" for port in ports]
        scraper = stack.enter_context(prometheus(targets, ALERTS))
        yield Fleet(scraper, server.user_url, server.admin, service, ports)


def without_data(fleet: Fleet, expressions: dict[str, str]) -> dict[str, str]:
    """Those that still give no number after LONG."""
    give_up = time.monotonic() + LONG
    missing = expressions
    while missing and time.monotonic() < give_up:
        fleet.go_on()
        missing = {
            name: expression
            for name, expression in missing.items()
            if not any(map(math.isfinite, fleet.prometheus.values(expression)))
        }
    return missing


@pytest.mark.proof
def test_each_panel_of_the_dashboard_has_data(fleet: Fleet) -> None:
    assert len(panels()) >= 20
    assert without_data(fleet, panels()) == {}


@pytest.mark.proof
def test_each_alert_has_series_to_watch(fleet: Fleet) -> None:
    assert all(COMPARISON.search(rule["expr"]) for rule in rules())
    assert without_data(fleet, alerts()) == {}
    [group] = fleet.prometheus.ask("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(
        alerts(), "ok"
    )


@pytest.mark.proof
def test_prometheus_adds_up_the_events_of_all_processes(fleet: Fleet) -> None:
    """Each kind of event has happened, in the sum of the processes."""
    happened = {
        name: f"sum({name}) > 0"
        for name in (
            *(f'headgate_acquires_total{{outcome="{each}"}}' for each in OUTCOMES),
            'headgate_pauses_total{reason="caller"}',
            'headgate_http_refusals_total{status_code="429"}',
            "headgate_leases_lost_total",
            "headgate_cost_returned_total",
        )
    }
    budget = 'headgate_budget_limit{limiter="api", unit="permits"}'
    one_view = {
        "each process has the budget": f"count({budget}) == {PROCESSES}",
        "and the same one": f"min({budget}) == 4 and max({budget}) == 4",
        "all scrapes succeed": "min(up) == 1",
    }
    assert without_data(fleet, happened | one_view) == {}


OUTCOMES = "passed", "waited", "not_now", "too_long", "queue_full", "never"


@pytest.mark.proof
def test_promtool_finds_no_fault_in_the_metrics(fleet: Fleet) -> None:
    assert without_data(fleet, {"refusals": "headgate_http_refusals_total"}) == {}
    checked = promtool("check", "metrics", given=fleet.scraped())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.proof
def test_one_exporter_serves_the_gauges_of_the_fleet_to_prometheus(fleet: Fleet) -> None:
    """The expressions of the dashboard hold for it, too. promtool finds no fault in its metrics."""
    with exporting(fleet.store) as (_, address):
        with prometheus([urlsplit(address).netloc], ALERTS) as scraper:
            alone = dataclasses.replace(fleet, prometheus=scraper)
            gauges = {title: each for title, each in panels().items() if OF_FLEET.search(each)}
            assert len(gauges) >= 4
            assert without_data(alone, gauges) == {}
            assert scraper.values('headgate_budget_limit{limiter="api", unit="permits"}') == [4]
        with urlopen(address) as reply:
            checked = promtool("check", "metrics", given=reply.read().decode())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.proof
def test_promtool_finds_no_fault_in_the_alerts() -> None:
    checked = promtool("check", "rules", "--lint-fatal", str(ALERTS))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(rules())} rules found" in checked.stdout
