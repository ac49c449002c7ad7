"""What a server answers holds everybody who uses the limiter, by every client, and never breaks a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

import headgate.http.requests
from headgate import Concurrency, Limiter
from headgate.http import heed
from headgate.http.heed import LONGEST, heeding, listen
from tests.http.clients import LIMITS
from tests.http.service import Service
from tests.world import at_rest, soon

Clients = Callable[..., Any]
MINUTE = {"Retry-After": "60"}


@pytest.fixture
def plenty(name: str, store: Any) -> Limiter:
    return Limiter(name, Concurrency(5), "1000/hour", store=store)


async def pause_of(limiter: Limiter) -> float | None:
    """For how long nobody passes."""
    return (await at_rest(limiter)).retry_after


# Every client ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_for_a_time_holds_all_who_use_the_limiter(
    clients: Clients, service: Service, plenty: Limiter, status: int
) -> None:
    """T3: and the answer is the caller's, as it came."""
    service.answers = [(status, MINUTE)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == status

    assert await pause_of(plenty) == pytest.approx(60, abs=1)
    assert not await plenty.atry_acquire()


async def test_the_next_call_leaves_when_the_time_is_over(clients: Clients, service: Service, plenty: Limiter) -> None:
    """Though the pause was only posted: by the same client it is not overtaken."""
    client, service.answers = clients(plenty), [(429, {"retry-after-ms": "60"})]

    start = time.monotonic()
    assert await soon(client.get(f"{service.url}/says")) == 429
    assert await soon(client.get(f"{service.url}/says")) == 200

    assert time.monotonic() - start >= 0.06
    await at_rest(plenty)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, MINUTE),
        (404, MINUTE),
        (429, {}),
        (429, {"Retry-After": "0"}),
        (429, {"Retry-After": "1, 2"}),
        (429, {"Retry-After": "-5", "RateLimit": '"a";r=', "x-ratelimit-reset": "1e400"}),
        (429, {"Retry-After": "60", "x-should-retry": "false"}),
    ],
)
async def test_what_is_no_refusal_for_a_time_holds_nobody(
    clients: Clients, service: Service, plenty: Limiter, status: int, headers: dict[str, str]
) -> None:
    """An answer that is none, one that says no time, one that says nonsense, one that no waiting helps."""
    service.answers = [(status, headers)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == status

    assert await pause_of(plenty) == 0


async def test_heed_false_makes_nothing_of_answers(clients: Clients, service: Service, plenty: Limiter) -> None:
    service.answers = [(429, MINUTE)]

    await soon(clients(plenty, heed=False).get(f"{service.url}/says"))

    assert await pause_of(plenty) == 0


async def test_an_answer_holds_its_own_key_and_no_exempt_call_anybody(clients: Clients, service: Service, plenty: Limiter) -> None:
    client = clients(plenty, key="host", exempt=["/empty"])
    service.answers = [(429, MINUTE)]

    await soon(client.get(f"{service.url}/says"))

    assert await pause_of(plenty["127.0.0.1"]) == pytest.approx(60, abs=1)
    assert await pause_of(plenty["localhost"]) == 0
    assert await soon(client.get(f"{service.url}/empty")) == 204


async def test_a_failure_to_heed_is_no_matter_of_the_calls(
    clients: Clients, service: Service, plenty: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is."""

    def fail(*answer: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(heed, "read", fail)
    service.answers = [(429, MINUTE)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == 429
    await at_rest(plenty)


@pytest.mark.parametrize("kind", sorted(LIMITS))
def test_heed_is_true_or_false(kind: str, plenty: Limiter) -> None:
    with pytest.raises(TypeError, match="heed must be a bool"):
        LIMITS[kind](object(), plenty, heed="no")


async def test_what_urllib3_sends_again_is_held_too(service: Service, plenty: Limiter) -> None:
    """What its `Retry` does not return to anybody is heard all the same."""
    retry = Retry(total=1, status_forcelist=[429], respect_retry_after_header=False)
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=retry))
    headgate.http.requests.limit(session, plenty)
    service.answers = [(429, {"retry-after-ms": "60"})]

    start = time.monotonic()
    answer = await asyncio.to_thread(session.get, f"{service.url}/says")

    assert (answer.status_code, service.calls) == (200, 2)
    assert time.monotonic() - start >= 0.06
    answer.close()
    session.close()
    await at_rest(plenty)


# Whatever the client -----------------------------------------------------------------------------------------------------------


def test_nobody_is_held_for_longer_than_an_hour(plenty: Limiter) -> None:
    """A server that means it says so again."""
    listen([plenty], 429, {"Retry-After": "86400"})

    assert plenty.status().retry_after == pytest.approx(LONGEST, abs=1)


def test_nothing_is_read_where_nothing_is_heeded() -> None:
    assert heeding("limit", False) is None
    assert heeding("limit", True) is listen
