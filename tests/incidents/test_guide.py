"""The guide "In production" names the alerts, the panels, the metrics and the verbs that exist."""

from __future__ import annotations

import re

import pytest

from headgate.cli.parser import make_parser
from headgate.telemetry.prometheus import FAMILIES
from tests.examples.test_docs import BLOCK
from tests.incidents.fleet import GUIDE
from tests.telemetry.test_prometheus_fleet import dashboard, rules

TEXT = GUIDE.read_text()
PLAIN = BLOCK.sub("", TEXT)
CODE = re.compile(r"`[^`]+`|^    .*", re.MULTILINE)
ALERT_ROW = re.compile(r"^\| ((?:`Headgate\w+`(?:, )?)+) \| (\w+) \|", re.MULTILINE)


def test_each_alert_has_its_severity_and_a_first_command() -> None:
    named = {
        alert: severity
        for alerts, severity in ALERT_ROW.findall(TEXT)
        for alert in re.findall(r"\w+", alerts)
    }
    assert named == {rule["alert"]: rule["labels"]["severity"] for rule in rules()}


def test_each_panel_exists() -> None:
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", TEXT))
    assert len(named) >= 8
    assert named <= {panel["title"] for panel in dashboard()["panels"]}


@pytest.mark.parametrize("metric", sorted({*re.findall(r"\bheadgate_\w+", TEXT)}))
def test_each_metric_exists(metric: str) -> None:
    assert metric.removesuffix("_total") in FAMILIES


def test_each_verb_exists() -> None:
    named = set(re.findall(r"headgate ([a-z]+)\b", "\n".join(CODE.findall(PLAIN))))
    assert {"doctor", "show", "resume", "reset", "set"} <= named <= set(make_parser()[1])
