"""The dashboard for Grafana, as far as it can be checked without Grafana.

A real Prometheus evaluates its expressions in test_prometheus_fleet.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.telemetry.test_prometheus_fleet import dashboard

COLUMNS = 24
UNITS = {"percentunit", "short", "s", "ops"}  # those of Grafana that the dashboard needs
OF_GRAFANA = {"__rate_interval", "__interval", "__range"}  # variables that always exist
SCHEMA, COMPILER = ("@grafana/schema", "11.6.0"), ("typescript", "5.8.3")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def test_each_panel_has_an_id_and_a_title_of_its_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert len({panel["title"] for panel in panels()}) == len(panels())
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]


def test_panels_lie_on_the_grid_and_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels():
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        assert 0 <= x < x + w <= COLUMNS, panel["title"]
        for place in ((column, row) for column in range(x, x + w) for row in range(y, y + h)):
            assert place not in taken, f"{panel['title']} lies upon {taken[place]}"
            taken[place] = panel["title"]
    rows = 1 + max(row for _, row in taken)
    assert len(taken) == COLUMNS * rows, "there is a gap"


def test_each_panel_asks_the_data_source_that_the_user_has_chosen() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    source = variables["datasource"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert variables["limiter"]["datasource"] == chosen
    for panel in panels():
        assert panel["datasource"] == chosen
        assert all(target.get("datasource", chosen) == chosen for target in panel["targets"])


def test_each_variable_of_an_expression_exists() -> None:
    known = {each["name"] for each in dashboard()["templating"]["list"]} | OF_GRAFANA
    for panel in panels():
        for target in panel["targets"]:
            assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= known, panel["title"]


def test_each_legend_names_labels_that_its_expression_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


def test_each_panel_has_a_unit_of_grafana() -> None:
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels()} == UNITS


@pytest.mark.proof
def test_the_dashboard_fits_the_published_types_of_grafana(tmp_path: Path) -> None:
    """The compiler of TypeScript compares each field with the types of Grafana's npm package."""
    assert not npm.missing_programs()
    (tmp_path / "node_modules").symlink_to(npm.installed(*SCHEMA))
    (tmp_path / "board.ts").write_text(
        'import type { Dashboard } from "@grafana/schema";\n'
        f"const board: Dashboard = {json.dumps(dashboard())};\nexport default board;\n"
    )
    compiler = npm.installed(*COMPILER) / "typescript/bin/tsc"
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext"]
    done = subprocess.run(
        ["node", str(compiler), *options, "board.ts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
