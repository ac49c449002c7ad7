"""A limiter as a decorator: on functions and generators, sync and async.

A function takes a permit for each call; a generator holds one for as long as it runs.
Run it: `python examples/decorators.py`
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator

from headgate import Concurrency, Limiter

limiter = Limiter("compression", Concurrency(2))
TEXT = b"so many at once, so many per second, so many tokens per minute; " * 100


def permits_in_use() -> int:
    return limiter.status().limits[0].used


@limiter
def size(text: bytes) -> tuple[int, int]:
    return len(zlib.compress(text)), permits_in_use()


@limiter
async def size_later(text: bytes) -> tuple[int, int]:
    return len(await asyncio.to_thread(zlib.compress, text)), permits_in_use()


@limiter
def chunks(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), 1000):
        yield text[start : start + 1000]


@limiter
async def compressed(text: bytes) -> AsyncIterator[bytes]:
    squeeze = zlib.compressobj()
    for start in range(0, len(text), 1000):
        yield squeeze.compress(text[start : start + 1000])
    yield squeeze.flush()


async def main() -> None:
    assert size(TEXT) == (len(zlib.compress(TEXT)), 1)
    assert await size_later(TEXT) == (len(zlib.compress(TEXT)), 1)
    for _ in chunks(TEXT):
        assert permits_in_use() == 1
    parts = []
    async for part in compressed(TEXT):
        assert permits_in_use() == 1
        parts.append(part)
    print(
        f"{len(TEXT)} bytes became {len(b''.join(parts))}; permits in use now: {permits_in_use()}"
    )


if __name__ == "__main__":
    asyncio.run(main())
