"""The files that other tools read: workflows, templates, CITATION.cff, those of pre-commit."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.machine import scaled
from tests.publishing.distributions import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS_CONFIG = GITHUB / "ISSUE_TEMPLATE/config.yml"
FORMS = sorted({*FORMS_CONFIG.parent.glob("*.yml")} - {FORMS_CONFIG})
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [FORMS_CONFIG],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
FEW = ({}, {"contents": "read"})  # rights
MAJOR = re.compile(r"[\w-]+/[\w-]+@(?:release/)?v\d+")
PYTHON = "Programming Language :: Python :: "


def read(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each job of each workflow, with its name: `release.yml publish`."""
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            yield f"{path.name} {name}", job


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_fits_its_published_schema(schema: str) -> None:
    assert SCHEMAS[schema]
    validator = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    command = [*validator, *map(str, SCHEMAS[schema])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(30))
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_on_the_pythons_of_the_classifiers() -> None:
    """A Python that CI only tries stands under `include`, and is newer than the others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classifiers = " ".join(project["classifiers"])
    claimed = re.findall(PYTHON + r"(3\.\d+)", classifiers)
    matrix = read(GITHUB / "workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    tried = [each["python"] for each in matrix.get("include", ())]
    assert matrix["python"] == claimed
    assert project["requires-python"] == f">={claimed[0]}"
    minors = [int(version.removeprefix("3.")) for version in [*claimed, *tried]]
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_ci_runs_the_script_of_the_repository() -> None:
    steps = read(GITHUB / "workflows/ci.yml")["jobs"]["tests"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci/run").exists()


def test_workflows_use_major_versions_of_actions() -> None:
    used = [step["uses"] for _, job in jobs() for step in job.get("steps", ()) if "uses" in step]
    assert used
    assert [each for each in used if not MAJOR.fullmatch(each)] == []


def test_only_the_upload_has_more_rights_than_to_read() -> None:
    """One job alone gets an identity, and it runs no code of the repository."""
    for path in WORKFLOWS:
        assert read(path)["permissions"] in FEW, path.name
    more = {name: job for name, job in jobs() if job.get("permissions", {}) not in FEW}
    assert list(more) == ["release.yml publish"]
    upload = more["release.yml publish"]
    assert upload["permissions"] == {"id-token": "write"}
    assert upload["environment"] == "pypi"
    assert [step["uses"].partition("@")[0] for step in upload["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_a_release_is_tested_before_it_is_built_and_has_attestations() -> None:
    release = read(GITHUB / "workflows/release.yml")
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert release["jobs"]["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert release["jobs"]["build"]["needs"] == "tests"
    assert release["jobs"]["publish"]["needs"] == "build"
    assert release["jobs"]["publish"]["steps"][-1]["with"] == {"attestations": True}


def test_pre_commit_runs_the_tasks_of_run() -> None:
    tasks = runpy.run_path(str(ROOT / "run"))["TASKS"]
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"  # so ruff and mypy have no second version
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert sorted(hooks) == ["lint", "types"]
    assert all(hook["entry"] == f"./run {name}" for name, hook in hooks.items())
    assert hooks.keys() <= tasks.keys()
    for hook in hooks.values():
        assert hook["pass_filenames"] is False
        assert re.search(hook["files"], "src/headgate/limiter.py")


def test_a_document_says_where_the_public_address_goes() -> None:
    assert (ROOT / "pyproject.toml").read_text().count("ADDRESS: ") == 1
    assert "ADDRESS" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "<!-- Address: " in (ROOT / "SECURITY.md").read_text()
