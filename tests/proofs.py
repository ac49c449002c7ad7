"""The proofs: the tests that only `./run test --all` runs, and the line that says how many a
shorter run left out.

A test is a proof by `@pytest.mark.proof`, or because it uses a Cluster or Sentinels. The mark may
name the kind: `@pytest.mark.proof("starts test suites")`. A run over the whole suite leaves the
proofs out. They run with `--all`, with `-m`, and wherever the command line names files or folders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

LONG = "long"  # the kind of a proof whose mark names none
KINDS = {
    "needs a Cluster": {"cluster", "secure_cluster"},
    "needs Sentinels": {"sentinels", "own_sentinels", "secure_sentinels"},
}  # by the fixtures that a test uses


def kind_of(item: pytest.Item) -> str | None:
    """Return the kind of proof that a test is, or None for the tests that every run runs."""
    mark = item.get_closest_marker("proof")
    if mark is None:
        return None
    return str(mark.args[0]) if mark.args else LONG


def mark_by_fixtures(item: pytest.Item) -> None:
    """Mark a test that uses a Cluster or Sentinels: by a fixture, or by a parameter that names the
    fixture.
    """
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    used = {
        *getattr(item, "fixturenames", ()),
        *(value for value in parameters if isinstance(value, str)),
    }
    for kind, fixtures in KINDS.items():
        if used & fixtures and kind_of(item) is None:
            item.add_marker(pytest.mark.proof(kind))


class Proofs:
    """The plugin: it deselects the proofs and counts them, in each process of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left_out: Counter[str] = Counter()

    @property
    def _wanted(self) -> bool:
        """Whether this run includes the proofs.

        A process of pytest-xdist follows the decision of its controller.
        """
        given = getattr(self._config, "workerinput", None)
        if given is not None:
            return bool(given["proofs"])
        names_tests = self._config.args_source is pytest.Config.ArgsSource.ARGS
        option = self._config.option
        return bool(option.all or option.markexpr or names_tests)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Mark before -m selects by marks; leave out after -k, so that the count is of tests that
        would have run.
        """
        for item in items:
            mark_by_fixtures(item)
        yield
        if not self._wanted:
            self._leave_out(items)

    def _leave_out(self, items: list[pytest.Item]) -> None:
        kinds = {item: kind for item in items if (kind := kind_of(item))}
        self._config.hook.pytest_deselected(items=list(kinds))
        items[:] = [item for item in items if item not in kinds]
        self._left_out.update(kinds.values())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["proofs"] = self._wanted

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["proofs"] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts from any process: all of them collect the same tests."""
        self._left_out = Counter(getattr(node, "workeroutput", {}).get("proofs", self._left_out))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._left_out.most_common())
            count = self._left_out.total()
            terminalreporter.write_line(
                f"left out: {count:,} proofs ({kinds}); ./run test --all runs them"
            )
