"""Responses pause and drain the limiter of all its users, and never break a call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from aiohttp import web
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

import headgate.http.httpx
import headgate.http.requests
from headgate import Concurrency, Limiter, Quota, Rate, Window
from headgate.gate.compile import Declaration, rules_of
from headgate.http import feedback, limiter_chain
from headgate.http.adoption import Adoption
from headgate.http.feedback import HEED_AT_MOST, Feedback
from headgate.http.limiter_chain import CallPermits
from headgate.http.redirects import depart
from headgate.internals import queue_of
from headgate.stores.memory.store import MemoryStore
from tests.http.clients import LIMITS
from tests.http.service import Service
from tests.world import LONG, at_rest, soon, until, used

Clients = Callable[..., Any]
MINUTE = {"Retry-After": "60"}


@pytest.fixture
def plenty(name: str, store: Any) -> Limiter:
    return Limiter(name, Concurrency(5), "1000/hour", store=store)


async def pause_of(limiter: Limiter) -> float | None:
    """Return for how long no call passes."""
    return (await at_rest(limiter)).retry_after


# Every client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_with_a_time_pauses_the_limiter(
    clients: Clients, service: Service, plenty: Limiter, status: int
) -> None:
    """T3: the caller gets the response as it came."""
    service.answers = [(status, MINUTE)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == status

    assert await pause_of(plenty) == pytest.approx(60, abs=LONG)
    assert not await plenty.atry_acquire()


async def test_the_next_call_leaves_when_the_pause_ends(
    clients: Clients, service: Service, plenty: Limiter
) -> None:
    """The pause is sent without waiting; a call of the same client does not overtake it."""
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
        (429, {"Retry-After": "60", "x-should-retry": "false"}),
    ],
)
async def test_other_responses_pause_nothing(
    clients: Clients, service: Service, plenty: Limiter, status: int, headers: dict[str, str]
) -> None:
    """No refusal, and a refusal that no wait helps."""
    service.answers = [(status, headers)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == status

    assert await pause_of(plenty) == 0


SPENT = '{"error": {"code": "insufficient_quota"}}'
SECONDARY = '{"message": "You have exceeded a secondary rate limit."}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "wait"),
    [
        (429, MINUTE, SPENT, 0),
        (403, MINUTE, SPENT, 0),
        (429, MINUTE, "{}", 60),
        (429, MINUTE, '{"e', 60),
        (403, {}, SECONDARY, 60),
    ],
)
async def test_the_body_of_a_refusal_is_applied(
    clients: Clients,
    service: Service,
    plenty: Limiter,
    kind: str,
    status: int,
    headers: dict[str, str],
    body: str,
    wait: int,
) -> None:
    """The body says that no wait helps, or for how long to wait. aiohttp has not read it, so its
    headers decide.
    """
    service.answers = [(status, headers, body)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == status

    assert await pause_of(plenty) == pytest.approx(
        60 * len(headers) if kind == "aiohttp" else wait, abs=1
    )


class Late(Service):
    """It sends the headers of a refusal at once, and the body when `finish` is called."""

    refusal: tuple[int, dict[str, str], str] = (429, MINUTE, SPENT)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert self._finish is not None
        status, headers, body = self.refusal
        response = web.StreamResponse(status=status, headers=headers)
        response.content_type = "application/json"
        await response.prepare(request)
        while not self._finish.is_set() and "drips" in request.path:
            await response.write(b" ")
            await asyncio.sleep(0.01)
        await self._finish.wait()
        await response.write(body.encode())
        return response


@pytest.mark.parametrize("body", ["stalls", "drips"])
async def test_a_late_body_does_not_delay_a_pause(
    clients: Clients, plenty: Limiter, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers hold the fleet, and the caller still gets the response. Then it is too late for
    the body to say that no wait helps.
    """
    monkeypatch.setattr(limiter_chain, "LATE", 0.1)
    with Late() as service:
        call = asyncio.ensure_future(clients(plenty, timeout=60).get(f"{service.url}/{body}"))
        await until(lambda status: (status.retry_after or 0) > 50, plenty)
        assert not call.done()

        service.finish()
        assert await soon(call) == 429

    assert await pause_of(plenty) == pytest.approx(60, abs=LONG)


def test_without_another_thread_the_headers_count_at_once(
    service: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of the interpreter. The caller gets the response."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    limiter = Limiter(name, "10/hour")
    service.answers = [(429, MINUTE, SPENT)]
    with headgate.http.requests.limit(requests.Session(), limiter) as session:
        monkeypatch.setattr(threading.Thread, "start", fail)
        response = session.get(f"{service.url}/says")
        monkeypatch.undo()

    assert (response.status_code, response.text) == (429, SPENT)
    assert limiter.status().retry_after == pytest.approx(60, abs=1)


async def test_a_late_body_counts_if_the_headers_state_no_refusal(
    clients: Clients, plenty: Limiter, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub's secondary limit stands in the body alone. aiohttp does not read it."""
    if kind == "aiohttp":
        return
    late = threading.Event()
    apply_headers = CallPermits.apply_headers
    monkeypatch.setattr(limiter_chain, "LATE", 0.0)
    monkeypatch.setattr(
        CallPermits, "apply_headers", lambda *call: (apply_headers(*call), late.set())
    )
    with Late() as service:
        service.refusal = 403, {}, SECONDARY
        call = asyncio.ensure_future(clients(plenty).get(f"{service.url}/stalls"))
        assert await asyncio.to_thread(late.wait, LONG)
        service.finish()
        assert await soon(call) == 403

    assert await pause_of(plenty) == pytest.approx(60, abs=LONG)


async def test_a_refusal_counts_although_its_caller_has_left(
    plenty: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled after the headers, before the body comes."""
    came, needs_body = threading.Event(), CallPermits.needs_body
    monkeypatch.setattr(CallPermits, "needs_body", lambda *call: came.set() or needs_body(*call))
    with Late() as service:
        async with headgate.http.httpx.limit(httpx.AsyncClient(timeout=LONG), plenty) as client:
            call = asyncio.ensure_future(client.get(f"{service.url}/stalls"))
            assert await asyncio.to_thread(came.wait, LONG)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    assert 0 < await pause_of(plenty) <= 60


async def test_feedback_false_ignores_responses(
    clients: Clients, service: Service, plenty: Limiter
) -> None:
    service.answers = [(429, MINUTE)]

    await soon(clients(plenty, feedback=False).get(f"{service.url}/says"))

    assert await pause_of(plenty) == 0


async def test_a_refusal_pauses_its_own_key_alone_and_an_exempt_one_nothing(
    clients: Clients, service: Service, plenty: Limiter
) -> None:
    client = clients(plenty, key="host", exempt=["/empty"])
    service.answers = [(429, MINUTE)]

    await soon(client.get(f"{service.url}/says"))

    assert await pause_of(plenty["127.0.0.1"]) == pytest.approx(60, abs=LONG)
    assert await pause_of(plenty["localhost"]) == 0
    assert await soon(client.get(f"{service.url}/empty")) == 204


async def test_a_failure_to_apply_feedback_does_not_reach_the_call(
    clients: Clients, service: Service, plenty: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any kind."""

    def fail(*answer: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(feedback, "read", fail)
    service.answers = [(429, MINUTE)]

    assert await soon(clients(plenty).get(f"{service.url}/says")) == 429
    await at_rest(plenty)


@pytest.mark.parametrize("kind", sorted(LIMITS))
def test_feedback_must_be_a_bool(kind: str, plenty: Limiter) -> None:
    with pytest.raises(TypeError, match="feedback must be a bool"):
        LIMITS[kind](object(), plenty, feedback="no")


async def test_a_refusal_that_urllib3_retries_pauses_the_limiter(
    service: Service, plenty: Limiter
) -> None:
    """A `Retry` returns it to no caller; it is applied nevertheless."""
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


async def test_a_refusal_that_ends_the_retries_of_urllib3_pauses_the_limiter(
    service: Service, plenty: Limiter
) -> None:
    """The last one of a `Retry` becomes an error."""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(total=0, status_forcelist=[429])))
    headgate.http.requests.limit(session, plenty)
    service.answers = [(429, MINUTE)]

    with pytest.raises(requests.exceptions.RetryError):
        await asyncio.to_thread(session.get, f"{service.url}/says")

    assert await pause_of(plenty) == pytest.approx(60, abs=1)
    session.close()


async def test_a_smaller_remaining_budget_drains_the_limiter(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """T1: a larger one changes nothing."""
    limiter = Limiter(name, "10/hour", store=store)
    client = clients(limiter)

    for remaining, count in (("9", 1), ("4", 6), ("8", 7)):
        service.answers = [(200, {"x-ratelimit-limit": "10", "x-ratelimit-remaining": remaining})]
        assert await soon(client.get(f"{service.url}/says")) == 200
        assert (await until(lambda status, count=count: used(status) == [count], limiter)).limits[
            0
        ].left == 10 - count


async def test_adopt_replaces_the_limit_by_that_of_the_server(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """T9: the declared limit is twice the server's. The other limits stay."""
    limiter = Limiter(name, Concurrency(5), Rate(20, per=3600), store=store)
    client = clients(limiter, adopt=True)

    for _ in range(2):
        service.answers = [
            (200, {"RateLimit": '"all";r=7', "RateLimit-Policy": '"all";q=10;w=3600'})
        ]
        assert await soon(client.get(f"{service.url}/says")) == 200

    status = await until(lambda status: status.limits[1].capacity == 10, limiter)
    assert status.limits[0].capacity == 5
    assert queue_of(limiter).declared.program == program(Concurrency(5), Rate(10, per=3600))
    assert status.limits[1].left <= 7
    await at_rest(limiter)


async def test_a_limit_is_not_adopted_by_default(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """And the remaining budget of another limit drains nothing."""
    limiter = Limiter(name, "20/hour", store=store)
    service.answers = [(200, {"RateLimit": '"all";r=7', "RateLimit-Policy": '"all";q=10;w=3600'})]

    assert await soon(clients(limiter).get(f"{service.url}/says")) == 200

    assert used(await limiter.astatus()) == [1]
    assert limiter.limits == (Window(20, per=3600),)


# Without a client ------------------------------------------------------------------------------


def respond(
    limiter: Limiter, headers: dict[str, str], status: int = 200, by: Feedback | None = None
) -> None:
    """Make one call and apply a response to it."""
    with limiter.acquire() as permit:
        (by or Feedback()).apply([(limiter, permit)], depart("host"), status, headers)


def adopting(low: float = 0.0, high: float = 1.0) -> Feedback:
    return Feedback(HEED_AT_MOST, Adoption((low, high), HEED_AT_MOST))


def test_a_pause_lasts_an_hour_at_most(plenty: Limiter) -> None:
    """A server that means more says so again."""
    respond(plenty, {"Retry-After": "86400"}, 429)

    assert plenty.status().retry_after == pytest.approx(HEED_AT_MOST, abs=LONG)


def test_a_used_up_quota_of_a_day_pauses_nothing(name: str) -> None:
    """Its empty budget would pause a limit of the same size, but no wait below a day helps."""
    limiter = Limiter(name, "20/day", store=MemoryStore())

    respond(limiter, {"x-ratelimit-limit-day": "20", "x-ratelimit-remaining-day": "0"}, 402)

    assert limiter.status().paused == 0


def left_after(limiter: Limiter, headers: dict[str, str]) -> list[int]:
    respond(limiter, headers, by=Feedback(heed_at_most=2 * 10**8))
    return [limit.left for limit in limiter.status().limits]


def test_a_budget_drains_the_limit_of_the_same_size(name: str) -> None:
    """A budget of an hour does not drain a limit of a second.

    A budget without a size drains a limiter's only limit, if it is the response's only budget.
    """
    two = '"burst";q=10;w=1,"hourly";q=1000;w=3600'
    limiter = Limiter(name, Window(10, per=1000), Quota(1000, per=10**8), store=MemoryStore())
    alone = Limiter(name, Window(10, per=1000), Concurrency(5), store=MemoryStore())
    beside = Limiter(
        name, Window(10, per=1000), Window(50, per=1000, unit="tokens"), store=MemoryStore()
    )

    assert left_after(
        limiter, {"RateLimit-Policy": two, "RateLimit": '"hourly";r=300,"burst";r=8'}
    ) == [8, 300]
    assert left_after(limiter, {"x-ratelimit-limit": "30", "x-ratelimit-remaining": "1"}) == [
        7,
        299,
    ]
    assert left_after(limiter, {"x-ratelimit-remaining": "1"}) == [6, 298]
    assert (
        left_after(alone, {"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "1"})[
            0
        ]
        == 9
    )
    assert left_after(alone, {"x-ratelimit-remaining": "3"})[0] == 3
    assert left_after(beside, {"x-ratelimit-remaining": "3"}) == [3, 50]


def program(*limits: Any) -> str:
    return Declaration(rules_of(limits)).program


def adopt_from(limiter: Limiter, headers: dict[str, str], high: float = 1.0) -> str:
    """Return the limits in force after a response. The declared ones stay as they were."""
    declared = limiter.limits
    respond(limiter, headers, by=adopting(high=high))
    assert limiter.limits == declared
    return queue_of(limiter).declared.program


def stating(limit: int) -> dict[str, str]:
    return {"x-ratelimit-limit": str(limit)}


TEN = stating(10)


@pytest.mark.parametrize(
    ("limit", "theirs"),
    [
        (Rate(20, per=60, initial=5), Rate(10, per=60)),
        (Rate(20, per=60, capacity=15), Rate(10, per=60, capacity=10)),
        (Rate(20, per=60, capacity=4), Rate(10, per=60, capacity=4)),
        (Window(20, per=60, slack=0.1), Window(10, per=60, slack=0.1)),
        (Quota(20, per=60, anchor=3.0), Quota(10, per=60, anchor=3.0)),
    ],
)
def test_an_adopted_limit_keeps_its_kind(name: str, limit: Any, theirs: Any) -> None:
    """And all that the server says nothing about."""
    limiter = Limiter(name, limit, "100 concurrent", store=MemoryStore())

    assert adopt_from(limiter, TEN) == program(theirs, Concurrency(100))
    assert adopt_from(limiter, TEN) == program(theirs, Concurrency(100))


@pytest.mark.parametrize(
    ("limit", "theirs"),
    [
        (Rate(20, per=60), Rate(30, per=60)),
        (Rate(20, per=60, capacity=15), Rate(30, per=60, capacity=15)),
        (Window(20, per=60), Window(30, per=60)),
    ],
)
def test_the_same_response_gives_the_same_limit_in_each_process(
    name: str, limit: Any, theirs: Any
) -> None:
    """One limiter has adopt_from a smaller limit in another form before, and one has not.

    A limit that rises again gets its burst back, and the two do not replace each other's limit for
    ever.
    """
    store = MemoryStore()
    before, new = (Limiter(name, limit, store=store) for _ in range(2))
    adopt_from(before, {"RateLimit-Policy": '"all";q=10;w=5'})
    thirty = {"RateLimit-Policy": '"all";q=30;w=60'}

    assert (
        adopt_from(new, thirty, high=2.0)
        == adopt_from(before, thirty, high=2.0)
        == adopt_from(new, thirty, high=2.0)
        == program(theirs)
    )


def test_a_stated_limit_of_tokens_does_not_hide_that_of_requests(name: str) -> None:
    limiter = Limiter(name, Rate(20, per=60), store=MemoryStore())

    assert adopt_from(limiter, {**TEN, "x-ratelimit-limit-tokens": "500"}) == program(
        Rate(10, per=60)
    )


def test_an_ambiguous_limit_is_not_adopted(name: str) -> None:
    """Two of ours, two of theirs, none that counts calls, or one without a size."""
    limits: list[Any] = [Rate(20, per=60), Window(30, per=60)]
    two = {"RateLimit-Policy": '"burst";q=10;w=1,"hourly";q=1000;w=3600'}

    assert adopt_from(Limiter(name, *limits, store=MemoryStore()), TEN) == program(*limits)
    assert adopt_from(Limiter(name, limits[0], store=MemoryStore()), two) == program(limits[0])
    assert adopt_from(Limiter(name, Concurrency(5), store=MemoryStore()), TEN) == program(
        Concurrency(5)
    )
    assert adopt_from(Limiter(name, limits[0], store=MemoryStore()), stating(0)) == program(
        limits[0]
    )


def test_a_limit_that_cannot_be_adopted_leaves_the_pause_in_force(name: str) -> None:
    """T3: the slack is longer than the window that the server states, so one limiter cannot adopt
    it.
    """
    limiter, other = (
        Limiter(f"{name}{number}", Quota(20, per=60, slack=5), store=MemoryStore())
        for number in (1, 2)
    )
    other.update(Quota(20, per=60))
    headers = {"RateLimit-Policy": '"all";q=10;w=5', "Retry-After": "60"}

    with limiter.acquire() as permit, other.acquire() as its:
        adopting().apply([(limiter, permit), (other, its)], depart("host"), 429, headers)

    assert queue_of(limiter).declared.program == program(Quota(20, per=60, slack=5))
    assert queue_of(other).declared.program == program(Quota(20, per=60), Quota(10, per=5))
    assert [each.status().retry_after for each in (limiter, other)] == [
        pytest.approx(60, abs=1)
    ] * 2


def test_adopting_does_not_undo_an_update_by_another_limiter(name: str) -> None:
    """T9: another limiter of the name has updated the limits."""
    store = MemoryStore()
    limiter = Limiter(name, Concurrency(5), Rate(20, per=60), store=store)
    Limiter(name, Concurrency(5), Rate(20, per=60), store=store).update(
        Concurrency(7), Rate(20, per=60)
    )

    adopt_from(limiter, TEN)

    assert [limit.capacity for limit in limiter.status().limits] == [7, 20]
