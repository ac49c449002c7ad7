"""`headgate exporter`: the metrics of the whole fleet, scraped from the real command.

A real Prometheus scrapes it in tests/telemetry/test_prometheus_fleet.py.
"""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from collections.abc import Sequence
from time import monotonic
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from headgate import Concurrency, Limiter, Semaphore
from headgate.cli.exporter import TIMEOUT, Reader, exporter
from headgate.cli.store import redis_store_of
from headgate.stores.redis.protocol.index import NAMES
from headgate.stores.redis.store import STATUSES, RedisStore
from headgate.stores.registry import store_of
from tests.cli.command import Done, exporting, headgate_done, scrape, scraped
from tests.faults.scene import enter
from tests.index import refreshed
from tests.rights import USER
from tests.servers import Server, dead_port
from tests.world import waiting


async def test_it_prints_an_ipv6_address_as_a_url_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headgate.cli.exporter.serve", lambda *_: None)
    serving = asyncio.create_task(
        exporter(Namespace(store="redis://127.0.0.1:1", host="::1", port=9465))
    )
    await asyncio.sleep(0)
    serving.cancel()
    assert capsys.readouterr().out == "http://[::1]:9465/metrics\n"


async def test_one_scrape_shows_all_names_of_the_fleet(own_server: Server) -> None:
    url = own_server.user_url
    api = Limiter("api", "10/hour", Concurrency(1), store=url)
    async with Semaphore("jobs", 3, redis_url=url), api["a key"]:
        pass
    async with api.acquire():
        waiter = asyncio.create_task(enter(api))
        await waiting(api, 1)
        await refreshed(url)
        await api.apause(60)
        with exporting(url) as (_, address):
            found = await scraped(address)
        await api.aresume()
    (await waiter).release()

    assert 0 < found.pop(("pause_remaining_seconds", "api")) <= 60
    assert found == {
        ("budget_usage", "window", "api", "requests"): 1,
        ("budget_limit", "window", "api", "requests"): 10,
        ("budget_usage", "concurrency", "api", "permits"): 1,
        ("budget_limit", "concurrency", "api", "permits"): 1,
        ("queue_length", "api"): 1,
        ("budget_usage", "concurrency", "Semaphore/jobs", "permits"): 0,
        ("budget_limit", "concurrency", "Semaphore/jobs", "permits"): 3,
        ("queue_length", "Semaphore/jobs"): 0,
        ("pause_remaining_seconds", "Semaphore/jobs"): 0,
        ("store_available", "raise", f"{store_of(url)}"): 1,
        ("exporter_unread_names", f"{store_of(url)}"): 0,
    }


async def test_a_scrape_declares_nothing_and_keeps_no_name_alive(own_server: Server) -> None:
    url, admin = own_server.user_url, own_server.admin
    await Limiter("api", "10/hour", store=url).acquire()
    await refreshed(url)
    admin.zadd("headgate:{/index}:names", {"forgotten": 2**40})
    for key in admin.scan_iter():
        admin.pexpire(key, 3_600_000)
    before = {key: admin.pttl(key) for key in admin.scan_iter()}

    with exporting(url) as (_, address):
        await scraped(address)
        found = await scraped(address)

    after = {key: admin.pttl(key) for key in admin.scan_iter()}
    assert {series[-1] for series in found if series[0] == "queue_length"} == {"api"}
    new = after.keys() - before.keys()
    assert new <= {"headgate:{api}:who"}  # the exporter is the second session of this name
    assert [key for key, left in after.items() if key not in new and left > before[key]] == []


async def test_a_store_that_goes_and_comes_back_is_seen_by_each_scrape(own_server: Server) -> None:
    """A server that is silent hangs no scrape for long."""
    url = own_server.user_url
    api = Limiter("api", "10/hour", store=url)
    await api.acquire()
    await refreshed(url)
    available = "store_available", "raise", f"{store_of(url)}"

    with exporting(url) as (started, address):
        assert (await scraped(address))[available] == 1
        own_server.pause()
        start = monotonic()
        unread = "exporter_unread_names", f"{store_of(url)}"
        assert await scraped(address) == {available: 0, unread: 1}
        assert monotonic() - start < 5 * TIMEOUT
        own_server.resume()
        back = await scraped(address)
        started.signal(signal.SIGTERM)
        ended = await asyncio.to_thread(started.done)

    assert (back[available], back["queue_length", "api"]) == (1, 0)
    first, second = ended.err.splitlines()
    assert "has not answered within 1 s" in first
    assert second.endswith("answers again.")
    assert ended.code == 0


async def test_a_store_that_refuses_calls_is_not_available(own_server: Server) -> None:
    url = own_server.user_url
    await Limiter("api", "10/hour", store=url).acquire()
    await refreshed(url)
    calls = ["-fcall"] if own_server.has_functions else ["-evalsha", "-eval"]
    own_server.admin.execute_command("ACL", "SETUSER", USER, *calls)

    with exporting(url) as (started, address):
        found = await scraped(address)
        started.signal(signal.SIGTERM)
        ended = await asyncio.to_thread(started.done)

    assert found == {
        ("store_available", "raise", f"{store_of(url)}"): 0,
        ("exporter_unread_names", f"{store_of(url)}"): 1,
    }
    assert "1 of 1 names: `headgate doctor` finds the fault." in ended.err


async def test_thousands_of_names_are_asked_for_in_parts(own_server: Server) -> None:
    """A busy machine may not show all of them in time. That is no outage of the store."""
    url, count = own_server.user_url, 3 * STATUSES + 1
    limiters = [Limiter(f"n{number}", "10/hour", store=url) for number in range(count)]
    await asyncio.gather(*(each.acquire() for each in limiters))
    own_server.admin.zadd(NAMES, {each.name: 2**40 for each in limiters})

    with exporting(url) as (_, address):
        found = await scraped(address)

    assert found["store_available", "raise", f"{store_of(url)}"] == 1
    shown = {series[1] for series in found if series[0] == "queue_length"}
    assert len(shown) == count


async def test_names_that_one_scrape_leaves_out_come_first_in_the_next(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the last names of the index would otherwise never be read."""
    url, names = own_server.user_url, {"a", "b", "c"}
    await asyncio.gather(*(Limiter(name, "10/hour", store=url).acquire() for name in names))
    await refreshed(url)
    read_all = RedisStore.astatuses

    async def read_one(store: RedisStore, names: Sequence[str], timeout: float) -> Any:
        return await read_all(store, names[:1], timeout)

    monkeypatch.setattr(RedisStore, "astatuses", read_one)
    reader = Reader(redis_store_of(Namespace(store=url)))
    scrapes = [await asyncio.to_thread(reader.read) for _ in names]

    assert {name for scrape in scrapes for name, _ in scrape.fleet.waiting} == names


def test_it_starts_without_a_store_and_ends_at_ctrl_c() -> None:
    port = dead_port()
    with exporting(f"redis://user:secret@127.0.0.1:{port}") as (started, address):
        assert list(scrape(address).values()) == [0, 0]
        started.signal(signal.SIGINT)
        ended = started.done()

    assert (ended.code, ended.out) == (130, "")
    assert "nothing listens there" in ended.err
    assert "secret" not in ended.err
    with pytest.raises(URLError):
        urlopen(address)


def test_a_port_that_cannot_be_had_is_an_error_of_usage(own_server: Server) -> None:
    def refused(*words: object) -> Done:
        done = headgate_done(own_server.user_url, "exporter", *words)
        assert (done.code, done.out) == (64, "")
        return done

    assert "no server can listen there" in refused("--port", own_server.port).err
    assert "--port 70000 is not a number from 1" in refused("--port", 70_000).err
    assert "no server can listen there" in refused("--host", "256.0.0.1").err
