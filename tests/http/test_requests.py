"""The peculiarities of requests and urllib3: retries inside an adapter, and ways to read a body."""

from __future__ import annotations

import copy
import pickle
import shutil
import threading
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.util.retry import Retry

from headgate import Concurrency, Limiter, MaxSleepExceededError
from headgate.http.requests import Adapter, limit
from tests.http.service import FIRST, REST, Service
from tests.world import used


class Seen(Retry):
    """A user's class of retries, which looks at the limiter before and after it sleeps."""

    limiter: Limiter
    held: list[int]

    def __init__(self, *arguments: Any, note: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.note = note

    def new(self, **options: Any) -> Any:
        return super().new(note=self.note, **options)

    def sleep(self, response: Any = None) -> None:
        assert self.note == "mine"
        self.held.append(used(self.limiter.status())[0])
        super().sleep(response)


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def single(name: str) -> Limiter:
    """A limiter of one call at a time, in this process."""
    return Limiter(name, Concurrency(1), "1000/hour")


def test_each_retry_of_urllib3_is_charged(
    session: requests.Session, service: Service, single: Limiter
) -> None:
    """With a Retry of the user's class. No permit is held while it sleeps."""
    Seen.limiter, Seen.held = single, []
    retry = Seen(3, status_forcelist=[503], backoff_factor=0.001, note="mine")
    session.mount("http://", HTTPAdapter(max_retries=retry))
    limit(session, single)
    service.failures = 2

    assert session.get(f"{service.url}/flaky").status_code == 200

    assert service.calls == 3
    assert used(single.status()) == [0, 3]
    assert Seen.held == [0, 0]


def test_a_retry_that_may_not_wait_is_refused(
    session: requests.Session, service: Service, name: str
) -> None:
    """With tokens for one attempt, the second is not sent, and the first limiter is refunded."""
    first, second = (
        Limiter(f"{name}-1", Concurrency(1)),
        Limiter(f"{name}-2", "1/hour", max_sleep=1.0),
    )
    session.mount("http://", HTTPAdapter(max_retries=Retry(3, status_forcelist=[503])))
    limit(session, first, second)
    service.failures = 2

    with pytest.raises(MaxSleepExceededError):
        session.get(f"{service.url}/flaky")

    assert service.calls == 1
    assert used(first.status()) == [0]


def test_a_session_that_is_limited_twice_counts_retries_in_both(
    session: requests.Session, service: Service, name: str
) -> None:
    total, each = (
        Limiter(f"{name}-total", Concurrency(1), "100/hour"),
        Limiter(f"{name}-each", Concurrency(1), "100/hour"),
    )
    session.mount("http://", HTTPAdapter(max_retries=Retry(3, status_forcelist=[503])))
    limit(limit(session, each, key="host"), total)
    service.failures = 2

    assert session.get(f"{service.url}/flaky").status_code == 200

    assert used(total.status()) == used(each["127.0.0.1"].status()) == [0, 3]


@pytest.mark.parametrize("scarce", ["total", "each"])
def test_a_retry_that_one_of_two_limiters_refuses_is_charged_to_none(
    session: requests.Session, service: Service, name: str, scarce: str
) -> None:
    """T8: the session is limited twice. The first attempt is charged, the retry is not."""
    rates = {"total": "5/hour", "each": "5/hour", scarce: "1/hour"}
    total, each = (
        Limiter(f"{name}-{its}", Concurrency(1), rates[its], max_sleep=0.5)
        for its in ("total", "each")
    )
    session.mount("http://", HTTPAdapter(max_retries=Retry(3, status_forcelist=[503])))
    limit(limit(session, each), total)
    service.failures = 2

    with pytest.raises(MaxSleepExceededError):
        session.get(f"{service.url}/flaky")

    assert (service.calls, used(total.status()), used(each.status())) == (1, [0, 1], [0, 1])


def test_limit_keeps_a_sessions_adapters_and_proxy(
    session: requests.Session, service: Service, name: str
) -> None:
    """In their order, with their pools; the host for `key` is that of the request."""
    before = dict(session.adapters)
    limiter = Limiter(name, "1/hour", max_sleep=1.0)

    assert limit(session, limiter, key="host") is session

    assert list(session.adapters) == list(before)
    assert {
        prefix: adapter.inner
        for prefix, adapter in session.adapters.items()
        if isinstance(adapter, Adapter)
    } == before
    assert session.get("http://host/by-proxy", proxies={"http": service.url}).status_code == 200
    assert service.paths == ["/by-proxy"]
    assert used(limiter["host"].status()) == [1]


def test_a_limited_session_keeps_its_retries(
    session: requests.Session, service: Service, single: Limiter
) -> None:
    """They can be read and set as before, and pass the limiter."""
    session.mount("http://", HTTPAdapter(max_retries=Seen(3, note="mine")))
    limit(session, single)
    adapter: Any = session.get_adapter("http://")
    Seen.limiter, Seen.held, service.failures = single, [], 2

    assert (adapter.max_retries.total, adapter.max_retries.note) == (3, "mine")
    assert isinstance(adapter.max_retries, Seen)
    adapter.max_retries = 7
    assert adapter.max_retries.total == adapter.inner.max_retries.total == 7
    adapter.max_retries = Seen(4, status_forcelist=[503], note="mine")
    assert session.get(f"{service.url}/flaky").status_code == 200

    assert (service.calls, Seen.held, used(single.status())) == (3, [0, 0], [0, 3])


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_limited_session_can_be_pickled(
    session: requests.Session, service: Service, single: Limiter, remake: Any
) -> None:
    """Its copy shares the limiter, and retries in the same way."""
    other = Limiter(f"{single.name}-2", "9/hour")
    session.mount("http://", HTTPAdapter(max_retries=Retry(3, status_forcelist=[503])))
    limit(limit(session, single, exempt=["/health"]), other, key="host")
    service.failures = 2

    with remake(session) as again:
        assert again.get(f"{service.url}/flaky").status_code == 200
        assert again.get(f"{service.url}/health").status_code == 200

    assert used(single.status()) == [0, 3]
    assert used(other["127.0.0.1"].status()) == [4]


def test_an_adapter_is_mounted_by_hand(
    session: requests.Session, service: Service, single: Limiter
) -> None:
    session.mount(f"{service.url}/limited", Adapter(single))

    assert (
        session.get(f"{service.url}/limited").text
        == session.get(f"{service.url}/free").text
        == "GET ok"
    )

    assert used(single.status()) == [0, 1]


@pytest.mark.parametrize("way", ["raw", "lines", "close raw", "with"])
def test_each_way_to_read_a_body_releases_its_permit(
    session: requests.Session, service: Service, single: Limiter, way: str
) -> None:
    limit(session, single)
    response = session.get(f"{service.url}/stream", stream=True)
    assert used(single.status())[0] == 1
    service.finish()

    if way == "raw":
        shutil.copyfileobj(response.raw, copy := BytesIO())
        assert copy.getvalue() == FIRST + REST
    elif way == "lines":
        assert b"".join(response.iter_lines()) == FIRST + REST
    elif way == "close raw":
        response.raw.close()
    else:
        with response:
            pass

    assert used(single.status())[0] == 0
    response.close()


def test_an_adapter_without_a_connection_holds_nothing(
    session: requests.Session, single: Limiter
) -> None:
    """The body of the user's adapter is complete when it answers."""

    class Canned(BaseAdapter):
        def send(
            self, request: requests.PreparedRequest, *arguments: Any, **options: Any
        ) -> requests.Response:
            response = requests.Response()
            response.status_code, response.raw, response.url = (
                200,
                BytesIO(b"canned"),
                request.url or "",
            )
            return response

        def close(self) -> None:
            pass

    session.mount("can://", Canned())
    limit(session, single)

    assert session.get("can://host/soup").text == "canned"
    assert used(single.status()) == [0, 1]


def test_threads_share_a_session(session: requests.Session, service: Service, name: str) -> None:
    """S1: a strict service refuses none of ten threads with one limited session."""
    limit(session, Limiter(name, Concurrency(2)))
    service.at_once = 2
    threads = [
        threading.Thread(target=session.get, args=(f"{service.url}/slow",)) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (service.calls, service.refused) == (10, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_whose_body_breaks_off_is_applied_by_its_headers(
    single: Limiter, stream: bool
) -> None:
    """And nothing stays held."""

    class Broken(BytesIO):
        def read(self, *arguments: Any) -> bytes:
            raise OSError("broken off")

    class Breaking(BaseAdapter):
        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            response = requests.Response()
            response.status_code, response.raw = 429, Broken()
            response.headers.update({"content-type": "application/json", "retry-after": "60"})
            return response

        def close(self) -> None:
            pass

    with requests.Session() as session:
        session.mount("http://", Adapter(single, inner=Breaking()))
        with pytest.raises(OSError, match="broken off"):
            session.get("http://host/", stream=stream).content  # noqa: B018 - it is read

    assert used(single.status())[0] == 0
    assert single.status().retry_after == pytest.approx(60, abs=1)
