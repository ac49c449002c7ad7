"""Which tests a run leaves out, and that it says so; and that a test of signals runs in a process
of its own.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests import alone
from tests.proofs import Proofs, kind_of, mark_by_fixtures


class Test:
    """Stands for a collected test."""

    __test__ = False

    def __init__(
        self, *marks: pytest.MarkDecorator, fixtures: tuple[str, ...] = (), **parameters: object
    ) -> None:
        self.marks = {mark.name: mark.mark for mark in marks}
        self.fixturenames = fixtures
        self.callspec = SimpleNamespace(params=parameters)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.setdefault(mark.name, mark.mark)


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def run(*items: Any, given: str = "TESTPATHS", **options: object) -> tuple[list[Any], list[str]]:
    """The tests that a run keeps, and its output at its end."""
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    option = SimpleNamespace(**{"all": False, "markexpr": "", **options})
    config: Any = SimpleNamespace(
        args_source=pytest.Config.ArgsSource[given], option=option, hook=hook
    )
    proofs, kept, terminal = Proofs(config), list(items), Terminal()
    selecting = proofs.pytest_collection_modifyitems(kept)
    next(selecting)
    next(selecting, None)
    proofs.pytest_terminal_summary(terminal)  # type: ignore[arg-type]  # all that it is asked for
    return kept, terminal.lines


PLAIN, LONG = Test(), Test(pytest.mark.proof)
SUITES = [Test(pytest.mark.proof("starts test suites")) for _ in range(2)]


def test_a_run_over_the_whole_suite_leaves_the_proofs_out_and_says_how_many() -> None:
    kept, said = run(PLAIN, LONG, *SUITES)
    assert kept == [PLAIN]
    assert said == ["left out: 3 proofs (2 starts test suites, 1 long); ./run test --all runs them"]


@pytest.mark.parametrize(
    "asked", [{"all": True}, {"markexpr": "proof"}, {"given": "ARGS"}], ids=str
)
def test_a_run_that_asks_for_all_or_by_mark_or_by_name_leaves_nothing_out(
    asked: dict[str, Any],
) -> None:
    assert run(PLAIN, LONG, **asked) == ([PLAIN, LONG], [])


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        (Test(fixtures=("cluster", "name")), "needs a Cluster"),
        (Test(fixtures=("place",), place="secure_cluster"), "needs a Cluster"),
        (Test(fixtures=("own_sentinels",)), "needs Sentinels"),
        (Test(pytest.mark.proof("stress"), fixtures=("cluster",)), "stress"),
        (Test(fixtures=("redis_url",)), None),
    ],
    ids=["a Cluster", "a Cluster by a parameter", "Sentinels", "marked", "one server"],
)
def test_a_test_that_needs_a_cluster_or_sentinels_is_a_proof(test: Any, kind: str | None) -> None:
    mark_by_fixtures(test)
    assert kind_of(test) == kind


@pytest.mark.proof("starts test suites")
@pytest.mark.signals
def test_a_test_of_signals_runs_in_a_process_of_its_own() -> None:
    assert alone.INSIDE in os.environ
