"""The fleet that calls a strict service through a client: small runs of it, and what it makes of what it is told."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.services import __main__ as services
from benchmarks.services.clients import CLIENTS, COROUTINES, THREADS
from benchmarks.services.fleet import Order, Told, run
from examples.services.budgets import Rules


def test_every_client_takes_part() -> None:
    assert set(CLIENTS) == COROUTINES.keys() | THREADS.keys()
    assert len(CLIENTS) == 10


@pytest.mark.parametrize("client", ["httpx", "requests, threads"])
def test_a_fleet_is_refused_nothing(client: str, redis_url: str, name: str) -> None:
    """S1: given two processes and a service that bears so many at once, then it has refused nobody, and counts as they do."""
    rules = Rules(1000, at_once=20, per=0.5, call_time=0.02)

    told = run(Order(client, "", 60, redis_url, name, rules, 0.06), 2)

    assert (told.statuses, told.calls, told.refused.total()) == ({200: 60}, 60, 0)
    assert told.most <= 20
    assert told.seconds > 60 / 20 * 0.02


@pytest.mark.parametrize(
    ("answered", "refused", "seconds", "met"),
    [(100, {}, 10.2, True), (100, {}, 10.4, False), (99, {}, 10.0, False), (100, {"requests": 1}, 10.0, False)],
)
def test_what_is_promised(answered: int, refused: dict[str, int], seconds: float, met: bool) -> None:
    """All answered, no 429, and at most 3 % over the best time."""
    told = Told(Counter({200: answered}), 100, Counter(refused), 20, seconds)

    assert services.as_promised(told, 100, 10.0) is met


def test_what_came_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    services.show({"httpx": Told(Counter({200: 99, 429: 1}), 100, Counter(requests=1), 20, 10.5)}, 100, 4, 10.0)

    said = capsys.readouterr().out
    assert all(word in said for word in ("httpx", "99", "1 for requests", "5.0%", "NOT AS PROMISED"))


def test_a_client_that_nobody_knows_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert services.main(["--clients", "curl"]) == 2
    assert "there are: aiohttp; anthropic; " in capsys.readouterr().out
