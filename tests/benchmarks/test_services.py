"""The fleet that calls a strict service through a client: small runs of it, and its judgement of
the reports.
"""

from __future__ import annotations

import time
from collections import Counter

import httpx
import pytest

from benchmarks.services import __main__ as services
from benchmarks.services import twice
from benchmarks.services.clients import CLIENTS, COROUTINES, THREADS
from benchmarks.services.fleet import (
    Counts,
    Order,
    Told,
    asked,
    child,
    counted,
    heard,
    run,
    serve,
    started,
    told_to_go,
)
from benchmarks.services.twice import Outcome, Trial
from examples.services.budgets import Rules


def test_every_client_takes_part() -> None:
    assert set(CLIENTS) == COROUTINES.keys() | THREADS.keys()
    assert len(CLIENTS) == 12


@pytest.mark.proof
@pytest.mark.parametrize("client", ["httpx", "requests, threads"])
def test_the_service_refuses_no_call_of_a_limited_fleet(
    client: str, redis_url: str, name: str
) -> None:
    """S1: given two processes and a service that bears so many at once, then it has refused no
    call, and counts as they do.
    """
    rules = Rules(1000, at_once=20, per=0.5, call_time=0.02)

    result = run(Order(client, "", 60, redis_url, name, rules, 0.06), 2)

    assert (result.statuses, result.calls, result.refused.total()) == ({200: 60}, 60, 0)
    assert result.most <= 20
    assert result.seconds > 60 / 20 * 0.02


@pytest.mark.parametrize(
    ("answered", "refused", "seconds", "met"),
    [
        (100, {}, 10.2, True),
        (100, {}, 10.4, False),
        (99, {}, 10.0, False),
        (100, {"requests": 1}, 10.0, False),
    ],
)
def test_a_run_is_as_promised_without_refusals_and_within_3_percent(
    answered: int, refused: dict[str, int], seconds: float, met: bool
) -> None:
    """All answered, no 429, and at most 3 % over the best time."""
    result = Told(Counter({200: answered}), 100, Counter(refused), 20, seconds)

    assert services.as_promised(result, 100, 10.0) is met


def test_the_table_shows_a_broken_promise(capsys: pytest.CaptureFixture[str]) -> None:
    services.show(
        {"httpx": Told(Counter({200: 99, 429: 1}), 100, Counter(requests=1), 20, 10.5)},
        100,
        4,
        10.0,
    )

    said = capsys.readouterr().out
    assert all(
        word in said for word in ("httpx", "99", "1 for requests", "5.0%", "NOT AS PROMISED")
    )


def test_an_unknown_row_is_refused_with_the_list_of_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert services.main(["--rows", "curl"]) == 2
    assert "there are: aiohttp; anthropic; " in capsys.readouterr().out


def test_a_row_that_cannot_be_measured_loses_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """And is said."""

    def ended() -> int:
        raise EOFError("no more")

    assert services.tried("curl", lambda: 3) == 3
    assert services.tried("curl", ended) is None
    assert "curl: NOT MEASURED" in capsys.readouterr().out


def test_the_service_forgets_calls_from_before_the_run() -> None:
    """By the service: its limits are whole again, and nothing was counted."""
    with child(serve, Rules(1, per=3600)) as service:
        url = heard(service)
        assert [httpx.get(url).status_code, httpx.get(url).status_code] == [200, 429]
        counts = counted(service)
        assert (counts.calls, len(counts.admitted), len(counts.turned_away), counts.refused) == (
            2,
            1,
            1,
            {"requests": 1},
        )

        asked(service, "anew")

        assert counted(service) == Counts(0, Counter(), 0, [], [])
        assert httpx.get(url).status_code == 200


# Limits that are wrong ----------------------------------------------------------------------------

HOUR = Rules(5, per=3600, call_time=0.0)  # nothing comes back while a test runs


def trial(entrant: str, store: str, name: str) -> Trial:
    """Two processes with ten callers each, which believe that they may make ten calls where five
    pass.
    """
    return Trial(entrant, "", store, name, HOUR, 0.0, 2, callers=10)


@pytest.mark.proof
@pytest.mark.parametrize("entrant", ["no limiter", "headgate, adopt=True"])
def test_a_fleet_with_limits_twice_too_high_adopts_the_right_ones(
    entrant: str, redis_url: str, name: str
) -> None:
    """Then the service answers five. Through headgate it gets five others at most, although twenty
    callers want more.
    """
    with started(HOUR, twice.work, trial(entrant, redis_url, name), 2) as (service, fleet):
        told_to_go(fleet)
        while len((counts := counted(service)).admitted) < 5:
            time.sleep(0.01)
        assert len(counts.admitted) == 5
        assert "headgate" not in entrant or len(counts.turned_away) <= 5


def result(admitted: list[float], turned_away: list[float]) -> Outcome:
    """Of a run of 12 s that began at 100."""
    counts = Counts(
        0,
        Counter(),
        0,
        [100 + moment for moment in admitted],
        [100 + moment for moment in turned_away],
    )
    return twice.outcome(
        Trial("", "", "", "", Rules(100, per=5.0), 0.0, 4, seconds=12.0), counts, 100.0
    )


def test_a_fleet_has_settled_when_hardly_anything_is_refused() -> None:
    """One in a hundred calls, and before three quarters of the run are over."""
    answered = [number / 25 for number in range(300)]

    assert result(answered, []) == Outcome(300, 0, 0.0, 0.0, 300)
    assert result(answered, [2.0, 2.0, 3.0]) == Outcome(300, 3, 3.0, 0.0, 300)
    assert result(answered, [1.0, 2.0, 3.0, 4.0, 11.0]).settled == 3.0
    assert result(answered, [10.0, 10.0, 10.0, 10.0]).settled is None
    assert result([], []) == Outcome(0, 0, 0.0, 0.0, 300)
    assert result(answered, []).share == 1.0


def test_the_table_shows_the_effect_of_wrong_limits(capsys: pytest.CaptureFixture[str]) -> None:
    services.show_wrong(
        {
            "aiolimiter": Outcome(450, 70, 16.5, None, 600),
            "headgate": Outcome(600, 3, 0.5, 0.5, 600),
        },
        4,
    )

    said = capsys.readouterr().out
    assert all(
        word in said
        for word in (
            "150 in any 5.0 s",
            "2 times as many",
            "never",
            "16.5 s",
            "75%",
            "after 0.5 s",
            "100%",
        )
    )
