"""The parts of a release: the files of both, their metadata, and the package index's text."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

import headgate
from tests.interpreters import CORE
from tests.machine import scaled
from tests.publishing.distributions import ROOT, Distributions

LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DOCUMENT = re.compile(r"(?<![\w/])(?:docs/)?[\w-]+\.md\b")
TESTED_FOLDERS = {word for word in CORE if word.startswith("tests/")} | {"tests/programs"}
ABOUT_THE_REPOSITORY = {"tests/interpreters.py", "tests/test_architecture.py"}
BUILT = re.compile(r"__pycache__|\.egg-info")
TOP_FILES = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"}


def files_below(folder: str) -> set[str]:
    """Return the files of a folder of the repository that are neither caches nor compiled."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if not BUILT.search(str(path))}


def test_the_wheel_has_every_file_of_the_package_and_no_other(distributions: Distributions) -> None:
    """Its files include py.typed, every .lua file and the fixtures for pytest."""
    expected = {name.removeprefix("src/") for name in files_below("src")}
    assert distributions.wheel_files == expected
    assert {name for name in expected if not name.startswith("headgate/")} == {"headgate_pytest.py"}
    assert "headgate/py.typed" in expected
    assert any(name.endswith(".lua") for name in expected)


def test_the_sdist_has_package_documents_and_core_tests(distributions: Distributions) -> None:
    expected = set(TOP_FILES)
    for folder in {"src", "docs", "telemetry", *TESTED_FOLDERS}:
        expected |= files_below(folder)
    shared = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*.py")}
    assert distributions.source_files == expected | shared - ABOUT_THE_REPOSITORY


def test_both_distributions_have_the_version_of_the_package(distributions: Distributions) -> None:
    version = headgate.__version__
    assert distributions.metadata["Version"] == version
    assert distributions.sdist.name == f"headgate-{version}.tar.gz"
    assert distributions.wheel.name == f"headgate-{version}-py3-none-any.whl"
    headings = re.findall("^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.match(rf"## \[(Unreleased\]: )?{re.escape(version)}\b", headings[0])


def test_the_version_is_written_in_one_place_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_author_and_license_are_those_of_the_license_file(distributions: Distributions) -> None:
    author = "The headgate authors"
    assert distributions.metadata["Author"] == author
    assert distributions.metadata["License-Expression"] == "MIT"
    assert re.search(rf"Copyright \(c\) \d{{4}} {author}\n", (ROOT / "LICENSE").read_text())
    assert f"name: {author}" in (ROOT / "CITATION.cff").read_text()


def test_the_index_shows_no_relative_link(distributions: Distributions) -> None:
    text, readme = distributions.index_text, (ROOT / "README.md").read_text()
    assert [target for target in LINK.findall(BLOCK.sub("", text)) if "://" not in target] == []
    assert LINK.findall(BLOCK.sub("", readme))  # there are some to take out


def test_the_index_shows_the_code_of_the_readme(distributions: Distributions) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(blocks) > 10
    assert BLOCK.findall(distributions.index_text) == blocks


def test_the_index_shows_nothing_that_needs_the_repository(distributions: Distributions) -> None:
    """It has no command of the repository, and names no document that the sdist does not have."""
    text = distributions.index_text
    assert "./run" not in text
    assert "<!-- index" not in text
    assert "$HFPR" not in text
    assert set(DOCUMENT.findall(text)) - distributions.source_files == set()
    assert "files of the source distribution" in text


@pytest.mark.proof("checks and installs the distributions")
def test_twine_finds_no_fault(distributions: Distributions) -> None:
    both = [str(distributions.sdist), str(distributions.wheel)]
    command = [sys.executable, "-m", "twine", "check", "--strict", *both]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(60))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2
