"""A crawler with a limiter for each host: slow hosts delay no other host.

Run it with the pages to start from: `python examples/recipes/crawler.py URL ...`
"""

import asyncio
import re
import sys
import time
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp

from headgate import Concurrency, Limiter
from headgate.http.aiohttp import limit

AGENT = {"User-Agent": "recipes/1.0 (say who runs it, and where to write)"}
LINK = re.compile(r"""<a\s[^>]*href=["']?([^"'\s>]+)""", re.IGNORECASE)
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)


class Crawler:
    """Visits each page of the hosts that it starts from once, `most` pages in all."""

    def __init__(self, start: list[str], rate: str, most: int = 1000) -> None:
        self.hosts = Limiter("hosts", rate, Concurrency(2))
        self.pages: dict[str, str] = {}  # address: its status, or its error
        self._wanted = {urlsplit(url).netloc for url in start}
        self._start, self._most = start, most

    async def run(self) -> None:
        session = aiohttp.ClientSession(timeout=PATIENCE, headers=AGENT)
        limit(session, self.hosts, key="host")
        async with session as self._session, asyncio.TaskGroup() as self._tasks:
            for url in self._start:
                self._add(url)

    def _add(self, url: str) -> None:
        url = urldefrag(url).url
        new = url not in self.pages and len(self.pages) < self._most
        if new and urlsplit(url).netloc in self._wanted:
            self.pages[url] = "queued"
            self._tasks.create_task(self._visit(url))

    async def _visit(self, url: str) -> None:
        try:
            async with self._session.get(url) as response:
                self.pages[url] = str(response.status)
                if response.ok and response.content_type == "text/html":
                    for link in LINK.findall(await response.text(errors="replace")):
                        self._add(urljoin(str(response.url), link))
        except (aiohttp.ClientError, TimeoutError) as error:
            self.pages[url] = repr(error)


async def main(start: list[str], rate: str) -> None:
    crawler = Crawler(start, rate)
    begun = time.monotonic()
    await crawler.run()
    print(f"{len(crawler.pages)} pages in {time.monotonic() - begun:.3f} s")
    for url, status in crawler.pages.items():
        if status != "200":
            print(f"{url}: {status}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:], rate="2/second burst 1"))
