"""A bare EVALSHA through redis-py: no limiter, but the least that a round trip with a small script
costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.clients import async_client, sync_client
from benchmarks.stage import PERIOD, PLENTY, Maker, Stage

SCRIPT = Path(__file__).with_name("bare_bucket.lua")
PER_TOKEN = PERIOD * 1_000_000 // PLENTY  # microseconds


class EmptyError(Exception):
    """The bare bucket was empty where there was plenty left."""


@contextmanager
def evalsha(stage: Stage) -> Iterator[Maker]:
    with async_client(stage) as client:

        async def load() -> str:
            return str(await client.script_load(SCRIPT.read_text()))

        sha = stage.run(load())

        def make(name: str) -> object:
            async def call() -> None:
                if not await client.evalsha(sha, 1, name, PLENTY, PER_TOKEN):
                    raise EmptyError

            return call

        yield make


@contextmanager
def evalsha_sync(stage: Stage) -> Iterator[Maker]:
    with sync_client(stage) as client:
        sha = client.script_load(SCRIPT.read_text())

        def make(name: str) -> object:
            def call() -> None:
                if not client.evalsha(sha, 1, name, PLENTY, PER_TOKEN):
                    raise EmptyError

            return call

        yield make
