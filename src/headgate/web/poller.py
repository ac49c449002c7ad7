"""The one reader of the store for all viewers of an event loop. It stops when the last one leaves.

Each viewer gets the newest snapshot. A slow viewer misses some, so nothing piles up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from headgate.errors import StoreError
from headgate.log_writer import log
from headgate.web.reading import Reader, Snapshot, View

INTERVAL = 1.0  # seconds between two reads
# A rest is REST times as long as the read before it, but LEAST_REST at least and MOST_REST at most.
# So reads take about a fifth of the time. A viewer that comes waits for no more than the rest.
REST, LEAST_REST, MOST_REST = 4, 0.1, 5.0
MOST_VIEWERS = 200


class Viewer:
    def __init__(self, view: View) -> None:
        self.view = view
        self.snapshot: Snapshot | None = None
        self._news = asyncio.Event()

    def show(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._news.set()

    async def next(self) -> Snapshot:
        """The newest snapshot that this viewer has not had."""
        await self._news.wait()
        self._news.clear()
        assert self.snapshot is not None
        return self.snapshot


class Poller:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    @property
    def full(self) -> bool:
        return len(self._viewers) >= MOST_VIEWERS

    @property
    def running(self) -> bool:
        return self._task is not None

    @contextmanager
    def viewer(self, view: View) -> Iterator[Viewer]:
        viewer = Viewer(view)
        self._viewers.add(viewer)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="headgate-web")
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            self._wake.set()

    async def _run(self) -> None:
        try:
            while self._viewers:
                self._wake.clear()
                began, viewers = monotonic(), list(self._viewers)
                snapshot = await self._read([viewer.view for viewer in viewers])
                for viewer in viewers:
                    viewer.show(snapshot)
                await self._rest(monotonic() - began)
        finally:
            # The loop's condition and this line are one step: no viewer comes between them.
            self._task = None

    async def _read(self, views: list[View]) -> Snapshot:
        try:
            return await self._reader.read(views)
        except StoreError as error:
            return Snapshot(trouble=str(error))
        except Exception as error:
            message = "The web page cannot read its store."
            log(logging.ERROR, message, error=error, kind="web")
            return Snapshot(trouble="The store could not be read. The log of this server says why.")

    async def _rest(self, spent: float) -> None:
        """Sleep for the least rest, then on until a read is due, or a viewer comes or leaves."""
        least = min(max(LEAST_REST, REST * spent), MOST_REST)
        await asyncio.sleep(least)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, INTERVAL - spent - least)):
                await self._wake.wait()
