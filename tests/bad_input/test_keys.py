"""Names with braces, colons, spaces, %, NUL or emoji are fine: on the server no two share a key,
and none breaks one.

That their states do not meet is in tests/conformance/test_names.py; here the keys themselves are
looked at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from redis.crc import key_slot

from headgate import Concurrency, Limiter, Semaphore, TokenBucket, Window
from headgate.internals import queue_of
from tests.conformance.test_names import HOSTILE, JOINED
from tests.servers import Server
from tests.world import HOUR, waiting

KEY = re.compile(r"headgate:\{([\w.~%/:-]+)\}(?::(?:who|log))?")  # all that may ever stand in a key
LONGEST = ["x" * 256, "%" * 256, "\0" * 256, "🙂" * 64, "}" * 256]


def whole(name: str, url: str) -> Limiter:
    """A limiter that needs every key there is: it has windows that fill, a holder and a waiter."""
    return Limiter(name, Concurrency(1), Window(100, per=HOUR), Window(200, per=HOUR), store=url)


@asynccontextmanager
async def busy(limiter: Limiter) -> AsyncIterator[None]:
    """Held once, waited for once, and with a past."""
    for _ in range(2):
        async with limiter:
            pass
    async with limiter:
        waiter = asyncio.create_task(limiter.acquire().__aenter__())
        await waiting(limiter, 1)
        yield
        waiter.cancel()
        await asyncio.wait([waiter])


async def keys_of(
    entrance: AbstractAsyncContextManager[None], client: Any, limiter: Limiter | None = None
) -> frozenset[str]:
    """The keys that are on the server inside, and were not before. The use of a key also tells the
    server of its `limiter`, for pauses of all keys. A process of some seconds tells the index.
    """
    before = {*await client.keys()}
    async with entrance:
        found = {key.decode("ascii") for key in {*await client.keys()} - before}
    others = ["/index", *([queue_of(limiter).name] if limiter else [])]
    known = tuple(f"headgate:{{{name}}}" for name in others)
    return frozenset(key for key in found if not key.startswith(known))


def assert_together(keys: frozenset[str]) -> None:
    """Each is well-formed, and all go to one place of a cluster, by their hash tag."""
    tags = {found[1] for key in keys if (found := KEY.fullmatch(key))}
    assert [key for key in keys if not KEY.fullmatch(key)] == []
    assert len(tags) == 1
    assert {key_slot(key.encode()) for key in keys} == {key_slot(tags.pop().encode())}


async def test_the_keys_of_a_name_share_its_hash_tag_and_belong_to_no_other_name(
    own_server: Server,
) -> None:
    """F19: Given hostile names and keys of limiters, when each is busy, then its keys are its own
    and stand together.
    """
    pairs: list[tuple[str, str | None]] = [
        *((name, None) for name in HOSTILE + LONGEST),
        *(("x", key) for key in HOSTILE + LONGEST),
        *JOINED,
    ]
    owner: dict[str, tuple[str, str | None]] = {}

    def made(name: str, key: str | None) -> Limiter:
        limiter = whole(name, own_server.url)
        return limiter if key is None else limiter[key]

    async with redis.asyncio.Redis.from_url(own_server.url) as client:
        for name, key in dict.fromkeys(pairs):
            parent = None if key is None else made(name, None)
            keys = await keys_of(busy(made(name, key)), client, parent)
            assert_together(keys)
            assert len(keys) == 2, keys  # the hash and the members
            assert [(owner[each], (name, key)) for each in keys if each in owner] == []
            owner.update(dict.fromkeys(keys, (name, key)))


@pytest.mark.parametrize("name", ["Semaphore/x", "TokenBucket/x", "x", "Semaphore%2Fx", "x:y"])
async def test_limiters_semaphores_and_buckets_of_one_name_have_keys_of_their_own(
    name: str, own_server: Server
) -> None:
    """A semaphore, a bucket and a limiter of one name, and names that imitate them."""
    made: list[Any] = [
        Limiter(name, "5/second", store=own_server.url),
        Limiter("x", "5/second", store=own_server.url)["y"],
        Semaphore("x", 1, redis_url=own_server.url),
        TokenBucket("x", 1, HOUR, 1, redis_url=own_server.url),
    ]
    async with redis.asyncio.Redis.from_url(own_server.url) as client:
        for each in made:
            parent = Limiter("x", "5/second", store=own_server.url) if each is made[1] else None
            keys = await keys_of(each, client, parent)
            assert_together(keys)  # and at least one is new
