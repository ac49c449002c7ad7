"""A real server for the page, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tests.faults.scene import eventually


@contextlib.asynccontextmanager
async def served(site: Any) -> AsyncIterator[str]:
    """The address of a server with `site`, in this event loop. It ends as a signal ends it."""
    config = uvicorn.Config(site, port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, server, "should_exit", True)
        task = asyncio.create_task(server._serve())  # `serve` would take over our signals
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    await task


def readers() -> list[str]:
    """The tasks of this event loop that read the store for the page."""
    return [each.get_name() for each in asyncio.all_tasks() if each.get_name() == "headgate-web"]
