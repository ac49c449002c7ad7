"""The lists of a store: names, keys, and the longest queues. They are the same for both stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate
from headgate import Concurrency, Limiter, QueueLength, Semaphore, UnknownLimiterError
from headgate.stores.memory.store import MemoryStore
from tests.faults.scene import enter, visit
from tests.index import refreshed
from tests.world import soon, waiting


async def names_of(store: Any, name: str) -> list[str]:
    """Those that begin with `name`: other tests use the same server."""
    if not isinstance(store, MemoryStore):
        await refreshed(store)
    found = await headgate.anames(store)
    assert found == await asyncio.to_thread(headgate.names, store)
    return [each for each in found if each.startswith(name)]


async def test_the_names_with_declared_limits_are_listed(name: str, store: Any) -> None:
    """A key counts as its limiter. A limiter that was only made, or looked at, is not listed."""
    await visit(Limiter(f"{name}-b", Concurrency(1), store=store))
    await visit(Limiter(f"{name}-a", "100/minute", store=store)["k"])
    async with Semaphore(f"{name}-c", 1, store=store):
        pass
    made = Limiter(f"{name}-d", "100/minute", store=store)
    await made.astatus()
    with pytest.raises(UnknownLimiterError):
        await Limiter.attach(f"{name}-e", store=store).astatus()
    assert await names_of(store, name) == [f"{name}-a", f"{name}-b"]


async def test_a_listed_name_can_be_attached(name: str, store: Any) -> None:
    hostile = f"{name} a:b/{{c}}\n☃%"
    await visit(Limiter(hostile, Concurrency(3), store=store))
    [listed] = await names_of(store, name)
    assert listed == hostile
    assert (await Limiter.attach(listed, store=store).astatus()).limits[0].capacity == 3


async def test_the_longest_queues_come_first(name: str) -> None:
    """At most ten, with their keys, in memory. Queues without waiters are left out."""
    store = MemoryStore()
    api = Limiter(name, Concurrency(1), store=store)
    permits = [await enter(api[f"k{number}"]) for number in range(12)]
    await visit(Limiter(f"{name}-free", Concurrency(1), store=store))
    waiters = [
        asyncio.create_task(enter(api[f"k{number}"])) for number in range(12) for _ in range(number)
    ]
    await waiting(api["k11"], 11)

    found = headgate.longest_queues(store)
    assert found == [QueueLength(name, f"k{number}", number) for number in range(11, 1, -1)]
    assert found == await headgate.alongest_queues(store)
    for task in waiters:
        task.cancel()
    await soon(asyncio.gather(*waiters, return_exceptions=True))
    for permit in permits:
        permit.release()


async def test_the_keys_of_a_limiter_are_listed_in_memory(name: str) -> None:
    """Those of another limiter, whose name begins alike, are not."""
    store = MemoryStore()
    api = Limiter(name, "100/minute", store=store)
    for key in ("b", "a b:{}\n", "☃"):
        await visit(api[key])
    await visit(Limiter(f"{name}2", "100/minute", store=store)["c"])
    taken = api["taken"]
    assert headgate.keys_of(api) == await headgate.akeys_of(api) == ["a b:{}\n", "b", "☃"]
    assert taken.key == "taken"


def test_keys_are_those_of_a_whole_limiter(name: str) -> None:
    api = Limiter(name, "100/minute")
    with pytest.raises(TypeError, match=r"keys_of\(\) got limiter .*'k'\], which is one key"):
        headgate.keys_of(api["k"])
    with pytest.raises(TypeError, match=r"keys_of\('api'\) lists the keys of a Limiter"):
        headgate.keys_of("api")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [headgate.names, headgate.longest_queues])
def test_a_store_that_is_none_is_an_error(ask: Any) -> None:
    with pytest.raises(ValueError, match="names no store that headgate knows"):
        ask("reddis://localhost")
