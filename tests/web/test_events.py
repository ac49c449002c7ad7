"""The state that a browser gets: names, one name, and changes, from one reader of the store."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

import pytest

from headgate import Concurrency, Limiter, names
from headgate.stores.memory.store import MemoryStore
from headgate.web import app, poller
from headgate.web.history import APART, LENGTH, MOST_NAMES, MOST_SAMPLES, History, Sample
from headgate.web.reading import PAGE, Reader, Snapshot
from tests.faults.scene import eventually
from tests.index import refreshed
from tests.machine import scaled_now
from tests.servers import Server
from tests.waiting import until_they_wait
from tests.web.asgi import basic, request, shown
from tests.web.serving import readers


async def used(name: str, store: Any, *limits: Any) -> Limiter:
    limiter = Limiter(name, *(limits or ("100/minute",)), store=store)
    (await limiter.acquire()).release()
    return limiter


async def indexed(store: Any) -> None:
    if not isinstance(store, MemoryStore):
        await refreshed(store)


def row_of(state: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in state["rows"] if row["name"] == name)


async def test_all_names_have_their_limits_waiters_and_pauses(
    name: str, store: MemoryStore | str
) -> None:
    limiter = await used(name, store, "100/minute", Concurrency(2))
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(limiter)
        waiter = asyncio.create_task(limiter.acquire())
        await until_they_wait(limiter, 1)
        await limiter.apause(60)
        await indexed(store)
        async with shown(app(store, auth=None), f"?search={name}") as stream:
            state = await stream.next()
            row = row_of(state, name)
            used_of = [(each["used"], each["capacity"], each["unit"]) for each in row["limits"]]
            assert used_of == [(3, 100, "requests"), (2, 2, "permits")]
            assert (row["key"], row["waiting"], 0 < row["paused"] <= 60) == (None, 1, True)
            assert [queue["name"] for queue in state["longest"]].count(name) == 1

            first = row["oldest"]
            later = row_of(await stream.next(), name)["oldest"]
            assert 0 < first < later
        waiter.cancel()


async def test_one_name_has_its_holders_waiters_and_samples(
    name: str, store: MemoryStore | str
) -> None:
    limiter = await used(name, store, Concurrency(2))
    async with limiter, limiter:
        waiters = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
        await until_they_wait(limiter, 3)
        await indexed(store)
        async with shown(app(store, auth=None), f"?name={name}") as stream:
            state = await stream.next()
            assert state["one"]["waiting"] == 3
            assert state["holding"] == 2
            [holders], [queued] = state["holders"], state["waiters"]
            assert (holders["count"], holders["units"]) == (2, {"permits": 1})
            assert (queued["count"], queued["units"]) == (3, {"permits": 1})
            assert queued["process"] == holders["process"] != ""
            [[_, waiting, full]] = state["samples"]
            assert (waiting, full) == (3, [1.0])

            state = await stream.next()
            assert state["waiters"][0]["seconds"] > queued["seconds"]
            assert len(state["samples"]) == 1
        for waiter in waiters:
            waiter.cancel()


async def test_a_key_can_be_shown(name: str, store: MemoryStore | str) -> None:
    limiter = Limiter(name, Concurrency(1), store=store)
    page = app(store, auth=None)
    async with limiter["tenant"], shown(page, f"?name={name}&key=tenant") as stream:
        one = (await stream.next())["one"]
    assert (one["key"], one["limits"][0]["used"]) == ("tenant", 1)


async def test_a_limiter_with_only_keys_in_use_shows_its_pause(
    name: str, store: MemoryStore | str
) -> None:
    limiter = Limiter(name, "100/minute", store=store)
    async with limiter["tenant"]:
        await limiter.apause(60)
    await indexed(store)
    async with shown(app(store, auth=None), f"?search={name}") as stream:
        row = row_of(await stream.next(), name)
    assert (row["known"], 0 < row["paused"] <= 60) == (True, True)


async def test_a_name_without_limits_is_shown_as_unknown_and_stays_so(
    name: str, store: MemoryStore | str
) -> None:
    async with shown(app(store, auth=None), f"?name={name}") as stream:
        one = {"name": name, "key": None, "known": False, "unread": False}
        assert (await stream.next())["one"] == one
        assert not (await stream.next())["one"]["known"]
    if isinstance(store, MemoryStore):
        assert names(store) == []


async def test_changes_are_seen_in_the_next_events(name: str, store: MemoryStore | str) -> None:
    limiter = await used(name, store)
    async with shown(app(store, auth=None), f"?name={name}") as stream:
        await stream.next()
        await limiter.aupdate("7/minute")
        await stream.until(lambda state: state["one"]["limits"][0]["capacity"] == 7)
        await limiter.apause(60)
        await stream.until(lambda state: state["one"]["paused"] > 0)


async def test_names_come_in_pages_and_can_be_searched() -> None:
    store = MemoryStore()
    limiters = [await used(f"Service-{number:03}", store) for number in range(2 * PAGE + 1)]
    assert len(limiters) == 2 * PAGE + 1
    page = app(store, auth=None)
    for query, first, count, found, at in (
        ("", 0, PAGE, 2 * PAGE + 1, 0),
        ("?page=1", PAGE, PAGE, 2 * PAGE + 1, 1),
        ("?page=2", 2 * PAGE, 1, 2 * PAGE + 1, 2),
        ("?page=99", 2 * PAGE, 1, 2 * PAGE + 1, 2),
        ("?page=-1", 0, PAGE, 2 * PAGE + 1, 0),
        ("?search=service-01", 10, 10, 10, 0),
    ):
        async with shown(page, query) as stream:
            state = await stream.next()
        assert [row["name"] for row in state["rows"]] == [
            limiter.name for limiter in limiters[first : first + count]
        ]
        assert (state["found"], state["page"], state["total"]) == (found, at, 2 * PAGE + 1)
    async with shown(page, "?search=none-of-these") as stream:
        assert (await stream.next())["rows"] == []


async def test_hostile_names_arrive_as_they_are() -> None:
    store = MemoryStore()
    hostile = "</script><img src=x onerror=alert(1)>\r\ndata: {}\n\n\u2028\u202e"
    await used(hostile, store)
    async with shown(app(store, auth=None)) as stream:
        assert [row["name"] for row in (await stream.next())["rows"]] == [hostile]


# One reader --------------------------------------------------------------------------------------


class Counted(Reader):
    """It counts the reads of the store, and the most at one time."""

    def __init__(self, where: Any) -> None:
        super().__init__(where)
        self.reads = self.most = self._now = 0

    async def read(self, views: Any) -> Snapshot:
        self.reads += 1
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return await super().read(views)
        finally:
            self._now -= 1


@pytest.fixture
def store_of_one() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, store_of_one: MemoryStore) -> Any:
    """A page, and its reader."""
    monkeypatch.setattr("headgate.web.application.Reader", Counted)
    return app(store_of_one, auth=None)


async def test_all_viewers_share_one_reader(counted: Any, store_of_one: MemoryStore) -> None:
    """Twenty viewers cost as many reads as one does."""
    await used("api", store_of_one)
    async with AsyncExitStack() as viewers:
        streams = [await viewers.enter_async_context(shown(counted)) for _ in range(20)]
        for _ in range(3):
            await asyncio.gather(*(stream.next() for stream in streams))
        assert (counted._reader.reads, counted._reader.most) == (3, 1)


async def test_the_reader_stops_when_the_last_viewer_leaves(counted: Any) -> None:
    async with shown(counted) as one, shown(counted) as other:
        await one.next()
        await one.disconnect()
        await other.next()
        assert readers() == ["headgate-web"]
    await eventually(lambda: readers() == [])
    reads = counted._reader.reads
    async with shown(counted) as again:
        await again.next()
        assert counted._reader.reads == reads + 1
    await eventually(lambda: readers() == [])


async def test_a_viewer_that_comes_is_answered_at_once(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the next turn of the reader."""
    monkeypatch.setattr(poller, "INTERVAL", 3600.0)
    async with shown(counted) as one:
        await one.next()
        async with shown(counted) as other:
            await other.next()


async def test_reads_take_a_fifth_of_the_time_at_most(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "INTERVAL", 0.0)
    monkeypatch.setattr(poller, "LEAST_REST", 0.0)
    moments: list[float] = []

    async def slow(self: Any, views: Any) -> Snapshot:
        moments.append(monotonic())
        await asyncio.sleep(0.02)
        moments.append(monotonic())
        return Snapshot()

    monkeypatch.setattr(Counted, "read", slow)
    async with shown(counted) as stream:
        for _ in range(4):
            await stream.next()
    for began, ended, next_began in zip(moments[::2], moments[1::2], moments[2::2], strict=False):
        assert next_began - ended >= 4 * (ended - began)


async def test_a_slow_viewer_misses_events_and_delays_no_other(
    counted: Any, monkeypatch: pytest.MonkeyPatch, store_of_one: MemoryStore
) -> None:
    monkeypatch.setattr(poller, "INTERVAL", 0.01)
    monkeypatch.setattr(poller, "LEAST_REST", 0.001)
    limiter = await used("api", store_of_one)
    async with shown(counted) as slow, shown(counted) as fast:
        await slow.next()
        slow.flowing.clear()
        for _ in range(20):
            await fast.next()
        limiter.pause(60)
        await fast.until(lambda state: row_of(state, "api")["paused"] > 0)
        slow.flowing.set()
        # One event was on its way. The one after it is the newest.
        await slow.next()
        assert row_of(await slow.next(), "api")["paused"] > 0


async def test_too_many_viewers_are_refused(counted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MOST_VIEWERS", 1)
    async with shown(counted) as one:
        await one.next()
        assert (await request(counted, "GET", "/events")).status == 503


async def test_a_stream_ends_and_the_next_one_brings_only_newer_samples(
    counted: Any, monkeypatch: pytest.MonkeyPatch, store_of_one: MemoryStore
) -> None:
    """A server that stops waits for its streams."""
    monkeypatch.setattr("headgate.web.history.APART", 3600.0)
    await used("api", store_of_one)
    with monkeypatch.context() as shorter:
        shorter.setattr("headgate.web.application.LONGEST_STREAM", scaled_now(0.3))
        async with shown(counted, "?name=api") as stream:
            await stream.next()
            await stream.task
    async with shown(counted, "?name=api", {"Last-Event-ID": stream.ids[-1]}) as stream:
        assert (await stream.next())["samples"] == []
    for unknown in ("", "nan", "-1", "x"):
        async with shown(counted, "?name=api", {"Last-Event-ID": unknown}) as stream:
            assert len((await stream.next())["samples"]) == 1


async def test_a_stream_does_not_end_before_its_first_event(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a silent store takes longer than a stream, and the event says that it is silent."""
    monkeypatch.setattr("headgate.web.application.LONGEST_STREAM", 0.0)
    async with shown(counted) as stream:
        assert (await stream.next())["total"] == 0
        await stream.task


async def test_events_need_the_user(store_of_one: MemoryStore) -> None:
    page = app(store_of_one, auth="ops:secret")
    assert (await request(page, "GET", "/events")).status == 401
    async with shown(page, "", basic("ops", "secret")) as stream:
        state = await stream.next()
        assert (state["actions"], state["store"]) == (False, "this process")


# Trouble -----------------------------------------------------------------------------------------


async def test_a_store_that_is_away_is_shown_until_it_is_back(
    name: str, own_server: Server
) -> None:
    await used(name, own_server.user_url)
    await refreshed(own_server.user_url)
    async with shown(app(own_server.user_url, auth=None)) as stream:
        assert "trouble" not in await stream.next()
        own_server.kill()
        state = await stream.until(lambda state: "trouble" in state)
        assert own_server.user_url.partition("@")[2].partition("/")[0] in state["trouble"]
        assert "password" not in str(state)
    own_server.start()
    async with shown(app(own_server.user_url, auth=None)) as stream:
        await stream.until(lambda state: "trouble" not in state)


async def test_a_fault_of_the_page_is_logged_and_shown(
    counted: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Any, views: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Counted, "read", fail)
    async with shown(counted) as stream:
        assert "log of this server" in (await stream.next())["trouble"]
        await stream.next()
    [record] = caplog.records
    assert (record.message, record.exc_info is not None) == (
        "The web page cannot read its store.",
        True,
    )


# The history -------------------------------------------------------------------------------------


def test_the_history_has_the_last_ten_minutes_of_the_names_that_were_read_last() -> None:
    history, moment = History(), 1_000_000.0
    for second in range(2 * MOST_SAMPLES):
        history.add(("api", None), Sample(moment + second, second, ()))
        history.add(("api", None), Sample(moment + second + APART / 2, second, ()))
    now = moment + 2 * MOST_SAMPLES
    samples = history.since(("api", None), 0.0, now)
    assert (len(samples), samples[-1].waiting) == (MOST_SAMPLES - 1, 2 * MOST_SAMPLES - 1)
    assert history.since(("api", None), samples[-2].time, now) == samples[-1:]
    assert history.since(("api", None), 0.0, now + LENGTH) == []

    for number in range(MOST_NAMES):
        history.add((f"{number}", None), Sample(now, 0, ()))
    assert history.since(("api", None), 0.0, now) == []
    history.add(("0", None), Sample(now + 1, 0, ()))
    history.add(("one more", None), Sample(now + 1, 0, ()))
    kept = [len(history.since((name, None), 0.0, now + 1)) for name in ("0", "1", "2")]
    assert kept == [2, 0, 1]
