"""Each alert fires by series that show its fault, and stays silent by series just below it.

promtool evaluates telemetry/alerts.yml itself over these series, minute by minute.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.prometheus_server import promtool
from tests.telemetry.test_prometheus_fleet import ALERTS, rules

END = 60  # minutes that the series last
Series = dict[str, str]
API = {"limiter": "api"}


def acquires(**rates: float) -> Series:
    """The acquires of each outcome in a minute, by one process."""
    return {
        f'headgate_acquires_total{{limiter="api", outcome="{outcome}"}}': grows(rate)
        for outcome, rate in rates.items()
    }


def buckets(metric: str, labels: str, **below: float) -> Series:
    """A histogram: for each bound, how many of 100 events in a minute are below it."""
    bounds = {bound.removeprefix("le").replace("_", "."): count for bound, count in below.items()}
    return {
        f'{metric}_bucket{{{labels}, le="{bound}"}}': grows(count)
        for bound, count in {**bounds, "+Inf": 100}.items()
    }


def grows(rate: float) -> str:
    return f"0+{rate}x{END}"


def stays(value: float) -> str:
    return f"{value}+0x{END}"


def of_two(metric: str, labels: str, first: float, second: float) -> Series:
    """A gauge of the fleet, as two processes report it."""
    return {
        f'{metric}{{{labels}, instance="{process}"}}': stays(value)
        for process, value in (("a", first), ("b", second))
    }


def budget(used: float) -> Series:
    labels = 'limiter="api", unit="tokens", kind="window"'
    usage = of_two("headgate_budget_usage", labels, used, 0)
    return usage | of_two("headgate_budget_limit", labels, 100, 100)


def refusals(first: float, second: float) -> Series:
    """Refusals in a minute, of two verdicts."""
    labels = 'limiter="api", status_code="429"'
    return {
        f'headgate_http_refusals_total{{{labels}, verdict="{verdict}"}}': grows(rate)
        for verdict, rate in (("pause", first), ("drain", second))
    }


def waits(below_30_s: float) -> Series:
    labels = 'limiter="api", outcome="waited"'
    return buckets("headgate_acquire_wait_time_seconds", labels, le30=below_30_s, le60=100)


def store_calls(below: float) -> Series:
    metric, labels = "headgate_store_call_duration_seconds", 'server="s:6379", error=""'
    return buckets(metric, labels, le0_25=below, le0_5=100)


def leases(rate: float) -> Series:
    return {'headgate_leases_lost_total{limiter="api"}': grows(rate)}


def available(first: float, second: float) -> Series:
    return of_two("headgate_store_available", 'store="s", mode="raise"', first, second)


def paused(first: float, second: float) -> Series:
    return of_two("headgate_pause_remaining_seconds", 'limiter="api"', first, second)


def queue(first: float, second: float) -> Series:
    return of_two("headgate_queue_length", 'limiter="api"', first, second)


@dataclass
class Case:
    labels: dict[str, str]  # of the alert, without its severity
    fires: Series
    silent: Series


CASES = {
    "HeadgateStoreUnavailable": Case({"store": "s"}, available(1, 0), available(1, 1)),
    "HeadgateWithoutStore": Case(API, acquires(passed=9, local=1), acquires(passed=9, local=0)),
    "HeadgateStoreErrors": Case(API, acquires(store_error=1), acquires(passed=9, store_error=0)),
    "HeadgateStoreSlow": Case({"server": "s:6379"}, store_calls(98), store_calls(99)),
    "HeadgateLeaseLost": Case(API, leases(1), leases(0)),
    "HeadgateServiceRefuses": Case(
        {**API, "status_code": "429"}, refusals(0.4, 0.2), refusals(0.4, 0)
    ),
    "HeadgateCostExceedsCapacity": Case(API, acquires(never=1), acquires(passed=9, never=0)),
    "HeadgateCallersGiveUp": Case(
        API,
        acquires(passed=94, too_long=3, queue_full=3),
        acquires(passed=95, too_long=3, queue_full=2),
    ),
    "HeadgateWaitsLong": Case(API, waits(94), waits(95)),
    "HeadgateQueueLong": Case(API, queue(1001, 0), queue(1000, 1000)),
    "HeadgateBudgetFull": Case(
        {**API, "unit": "tokens", "kind": "window"}, budget(95), budget(94.9)
    ),
    "HeadgatePaused": Case(API, paused(0, 60), paused(0, 0)),
}


def minutes_of(rule: dict[str, Any]) -> int:
    """The time for which a fault must last."""
    return int(rule.get("for", "0m").removesuffix("m"))


def story(rule: dict[str, Any], series: Series, moments: dict[int, bool]) -> dict[str, Any]:
    """A test of promtool: at each of these minutes the alert fires, or it does not."""
    labels = CASES[rule["alert"]].labels

    def rendered(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)

    alert = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {name: rendered(text) for name, text in rule["annotations"].items()},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": rule["alert"],
                "exp_alerts": [alert] if fires else [],
            }
            for minute, fires in moments.items()
        ],
    }


def check(folder: Path, *stories: dict[str, Any]) -> None:
    path = folder / "stories.yml"
    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": stories}
    path.write_text(json.dumps(tests))  # JSON is YAML
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    assert [rule["alert"] for rule in rules()] == list(CASES)


@pytest.mark.proof
@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_fires_by_its_fault_alone(rule: dict[str, Any], tmp_path: Path) -> None:
    """It fires when the fault has lasted for its time, and not before."""
    case, lasting = CASES[rule["alert"]], minutes_of(rule)
    late = lasting + 20
    fault = {lasting // 2: False, late: True} if lasting else {late: True}
    check(
        tmp_path,
        story(rule, case.fires, fault),
        story(rule, case.silent, {late: False, END: False}),
    )


@pytest.mark.proof
def test_no_alert_fires_when_all_is_idle(tmp_path: Path) -> None:
    """All counters stand still at some number, and a division gives no number."""
    counts: Series = {}
    for case in CASES.values():
        counts |= {name: stays(7) for name in case.fires if "_total" in name or "_bucket" in name}
    check(tmp_path, *(story(rule, counts, {END: False}) for rule in rules()))


@pytest.mark.proof
def test_an_alert_ends_with_its_fault(tmp_path: Path) -> None:
    rule = next(each for each in rules() if each["alert"] == "HeadgateStoreUnavailable")
    away = 'headgate_store_available{store="s", mode="raise"}'
    check(tmp_path, story(rule, {away: "1 1 1 0 0 0 0 1 1 1"}, {2: False, 5: True, 8: False}))
