"""The crawler recipe: the program itself, and its crawler beside two hosts of one server."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.faults.scene import eventually
from tests.recipes.programs import RECIPES

PAGES = 12  # of each host
PER_HOST = 2  # at once, of the recipe
RATE = 50.0  # a second
HOSTS = ("127.0.0.1", "localhost")


class Site:
    """Each page links to all pages, which answer when `go` is set."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.answers: dict[str, web.Response] = {}
        self.port = 0
        self.go = asyncio.Event()

    async def page(self, request: web.Request) -> web.Response:
        host = request.host.partition(":")[0]
        self.seen[f"{host}{request.path}"] += 1
        self.inside[host] += 1
        self.most[host] = max(self.most[host], self.inside[host])
        try:
            if request.path != "/":
                await self.go.wait()
            return self.answers.pop(request.path, None) or self._links()
        finally:
            self.inside[host] -= 1

    def _links(self) -> web.Response:
        paths = [f"/{number}{anchor}" for number in range(1, PAGES) for anchor in ("", "#top")]
        links = "".join(f"<a href='{path}'>{path}</a>" for path in (*paths, "//other.invalid/"))
        return web.Response(text=links, content_type="text/html")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_get("/{page:.*}", site.page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.port = runner.addresses[0][1]
    yield site
    await runner.cleanup()


@pytest.fixture
def crawler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RECIPES))
    yield importlib.import_module("crawler")
    del sys.modules["crawler"]


def start(site: Site) -> list[str]:
    return [f"http://{host}:{site.port}/" for host in HOSTS]


async def test_each_host_has_as_many_calls_at_once_as_it_may(site: Site, crawler: Any) -> None:
    """Given that all pages are found and none is answered, then two of each host are inside."""
    crawl = crawler.Crawler(start(site), "1000/second")
    running = asyncio.create_task(crawl.run())
    left = PAGES - 1 - PER_HOST
    await eventually(lambda: [crawl.hosts[host].status().waiting for host in HOSTS] == [left, left])
    await eventually(lambda: site.inside == Counter(dict.fromkeys(HOSTS, PER_HOST)))
    site.go.set()
    await running
    assert site.most == Counter(dict.fromkeys(HOSTS, PER_HOST))
    assert len(crawl.pages) == PAGES * len(HOSTS)
    assert crawl.pages == dict.fromkeys(crawl.pages, "200")
    assert set(site.seen.values()) == {1}


async def test_no_host_is_visited_faster_than_its_rate(site: Site, crawler: Any) -> None:
    site.go.set()
    begun = time.monotonic()
    crawl = crawler.Crawler(start(site), f"{RATE:g}/second burst 1")
    await crawl.run()
    assert time.monotonic() - begun >= (PAGES - 1) / RATE
    assert len(crawl.pages) == PAGES * len(HOSTS)


async def test_a_host_that_asks_for_a_pause_is_paused_and_the_other_goes_on(
    site: Site, crawler: Any
) -> None:
    site.answers["/"] = web.Response(status=429, headers={"Retry-After": "60"})
    crawl = crawler.Crawler(start(site)[:1], "1000/second")
    await crawl.run()
    assert crawl.pages == {start(site)[0]: "429"}
    status = await crawl.hosts[HOSTS[0]].astatus()
    assert 0 < status.paused <= 60
    assert (await crawl.hosts[HOSTS[1]].astatus()).paused == 0


@pytest.mark.proof
async def test_the_program_names_the_pages_that_it_could_not_read(site: Site) -> None:
    site.answers["/"] = web.Response(status=404)
    words = [sys.executable, "-W", "error", str(RECIPES / "crawler.py"), start(site)[0]]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    first, second = said.decode().splitlines()
    assert (process.returncode, first[:10], second) == (0, "1 pages in", f"{start(site)[0]}: 404")
