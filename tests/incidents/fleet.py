"""A fleet with an incident, and the tools with which an operator finds its cause.

Each command is also in docs/in-production.md: `find` takes only those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from headgate.limits import Limit
from tests.cli.command import Done, exporting, headgate_done
from tests.processes import PATIENCE, Running, running
from tests.servers import Server, free_port

GUIDE = Path(__file__).parents[2] / "docs/in-production.md"


class Process:
    """A process of the fleet: see programs/operated.py."""

    def __init__(self, process: Running, port: int) -> None:
        self.pid = process.pid
        self._process = process
        self._port = port
        self._lines: list[str] = []  # since the last order

    def does(self, order: str, says: str) -> None:
        """Go on when it has done it."""
        self._lines.clear()
        self._process.tell(order)
        self.until(says)

    def until(self, text: str) -> None:
        """Go on when it has said or logged `text`, since the last order."""
        while not any(text in line for line in self._lines):
            line = self._process.line()
            assert line != "<ended>", f"it has ended, and has not said {text!r}"
            self._lines.append(line)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of its own series of that name with these labels."""
        return metric(f"http://127.0.0.1:{self._port}/metrics", name, **labels)

    def kill(self) -> None:
        self._process.kill()


class Fleet:
    def __init__(self, server: Server, stack: ExitStack) -> None:
        self.server = server
        self._stack = stack

    def process(self, name: str, *limits: Limit | str) -> Process:
        """One more process, with a limiter of that name."""
        port = free_port()
        url = self.server.user_url
        process = self._stack.enter_context(
            running("operated", url, port, name, *map(repr, limits))
        )
        assert process.line() == "ready"
        return Process(process, port)

    def command(self, words: str) -> Done:
        """`headgate` with the words of a command of the guide."""
        assert re.search(rf"headgate {re.escape(words)}(?![\w-])", GUIDE.read_text()), words
        return headgate_done(self.server.user_url, *words.split())

    def find(self, words: str) -> dict[str, Any]:
        """The JSON of a command of the guide."""
        return self.command(f"{words} --json").object

    def metric(self, name: str, **labels: str) -> float:
        """As `Process.metric`, of the whole fleet."""
        with exporting(self.server.user_url) as (_, address):
            return metric(address, name, **labels)


@contextmanager
def fleet_on(server: Server) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(server, stack)


def metric(address: str, name: str, **labels: str) -> float:
    assert name in GUIDE.read_text(), name
    with urlopen(address, timeout=PATIENCE) as reply:
        text = reply.read().decode()
    return sum(
        each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )
