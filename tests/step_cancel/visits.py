"""Every public coroutine of headgate, as a visit: an object to be entered, and a coroutine that
makes a call of it.

This module has the visits, and no tests. A visit records the tokens that it has taken, so that a
test knows the charge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from headgate import (
    Concurrency,
    Limiter,
    LimiterClosedError,
    Permit,
    Rate,
    RateLimiter,
    Semaphore,
    StoreError,
    TokenBucket,
    akeys_of,
    alongest_queues,
    anames,
)
from headgate.counts import time_permits
from headgate.entrance import Entrance
from headgate.frameworks.langchain import LangChainLimiter
from headgate.frameworks.pydantic_ai import PydanticAILimiter
from headgate.keys import encoded
from headgate.limits import Limit
from headgate.stores import registry
from headgate.stores.redis.members import read_members
from tests.faults.absence import AGES
from tests.world import World

CAPACITY = 2
TOKENS = Rate(1000, per=AGES, unit="tokens")  # none comes back within a test
MORE = CAPACITY + 1
PLENTY = 20  # tokens of a classic bucket: no caller waits for them
FORMER: list[Limiter] = []  # limiters whose queues are to stay
ANOTHER: dict[str, Limiter] = {}  # beside the one of a test, by name
Visiting = Coroutine[Any, Any, None]
BOTH, MEMORY, REDIS, NOWHERE = ("memory", "redis"), ("memory",), ("redis",), ("nowhere",)


@dataclass(frozen=True)
class Visit:
    """`make` the object in a world, under a name and with limits beside its own; `ask` it, and
    record the `taken` tokens.
    """

    ask: Callable[[Any, list[int]], Visiting]
    make: Callable[..., Any]
    stores: tuple[str, ...] = BOTH
    holds: bool = True  # there are permits, which others may take first
    paced: bool = True  # it can pass one caller a beat
    closes: bool = True  # to close the coroutine closes all that it waits for


def limiter(**options: Any) -> Callable[..., Limiter]:
    def make(world: World, name: str, *limits: Limit) -> Limiter:
        return Limiter(name, Concurrency(CAPACITY), TOKENS, *limits, store=world.store, **options)

    return make


def timed(world: World, name: str, *limits: Limit) -> Limiter:
    """A limiter whose permits are timed for the telemetry."""
    time_permits(True)
    made = limiter()(world, name, *limits)
    time_permits(False)
    return made


def one_key(world: World, name: str, *limits: Limit) -> Limiter:
    return limiter()(world, name, *limits)["tenant"]


def attached(**options: Any) -> Callable[..., Limiter]:
    """To a name whose limits an update has set."""

    def make(world: World, name: str, *limits: Limit) -> Limiter:
        limiter()(world, name, *limits).update(Concurrency(CAPACITY), TOKENS, *limits)
        return Limiter.attach(name, store=world.store, **options)

    return make


def beside_another(world: World, name: str, *limits: Limit) -> Limiter:
    """Another limiter of the name, to be closed."""
    ANOTHER[name] = limiter()(world, name, *limits)
    return limiter()(world, name, *limits)


def undeclared(world: World, name: str, *limits: Limit) -> Limiter:
    """Another limiter of the name, which has declared nothing either, would declare more."""
    FORMER.append(Limiter(name, Concurrency(MORE), TOKENS, *limits, store=world.store))
    return limiter()(world, name, *limits)


def semaphore(world: World, name: str) -> Semaphore:
    return Semaphore(name, CAPACITY, **world.place)


def bucket(world: World, name: str, *limits: Limit) -> TokenBucket:
    """Full, or empty when it has to pace the callers."""
    return TokenBucket(
        name,
        PLENTY,
        world.beat if limits else AGES,
        1,
        initial_tokens=1 if limits else PLENTY,
        **world.place,
    )


def rated(world: World, name: str, *limits: Limit) -> Limiter:
    """As LangChain needs it: no permit is held, and requests are counted."""
    return Limiter(name, *(limits or [Rate(PLENTY, per=AGES)]), store=world.store)


def both_at_once(world: World, name: str) -> Entrance:
    return RateLimiter(100_000, CAPACITY).throttle()


# Calls --------------------------------------------------------------------------------------------


async def enters(limited: Any, taken: list[int]) -> None:
    async with limited:
        await asyncio.sleep(0)


async def enters_and_counts(limited: Any, taken: list[int]) -> None:
    """Of a bucket, where each entry is charged."""
    async with limited:
        taken.append(1)
        await asyncio.sleep(0)


async def acquires(limiter: Limiter, taken: list[int], **options: Any) -> None:
    permit = await limiter.acquire(tokens=5, **options)
    taken.append(5)
    permit.release()


async def enters_an_acquire(limiter: Limiter, taken: list[int], **options: Any) -> None:
    async with limiter.acquire(tokens=5, **options):
        taken.append(5)
        await asyncio.sleep(0)


async def acquires_patiently(limiter: Limiter, taken: list[int]) -> None:
    await acquires(limiter, taken, max_sleep=3600)


async def enters_with_on_wait(limiter: Limiter, taken: list[int]) -> None:
    reported: list[object] = []
    await enters_an_acquire(limiter, taken, on_wait=reported.append)
    assert len(reported) < 2


async def passes_langchain(limiter: Limiter, taken: list[int]) -> None:
    assert await LangChainLimiter(limiter).aacquire()


async def passes_pydantic_ai(limiter: Limiter, taken: list[int]) -> None:
    runs = PydanticAILimiter(limiter)
    await runs.acquire("model:any")
    runs.release()


async def tries(limiter: Limiter, taken: list[int]) -> None:
    permit = await limiter.atry_acquire(tokens=5)
    if isinstance(permit, Permit):
        taken.append(5)
        permit.release()


async def waits_for_its_release(limiter: Limiter, taken: list[int]) -> None:
    permit = await limiter.acquire(tokens=5)
    taken.append(5)
    await permit.arelease()


async def waits_for_its_release_in_a_block(limiter: Limiter, taken: list[int]) -> None:
    """It settles first, and that settlement holds however the release ends."""
    async with limiter.acquire(tokens=5) as permit:
        permit.settle(tokens=3)
        taken.append(3)
        await permit.arelease()


async def looks(limiter: Limiter, taken: list[int]) -> None:
    await limiter.astatus()


async def looks_in_vain(limiter: Limiter, taken: list[int]) -> None:
    with suppress(StoreError):
        await limiter.astatus()


async def lists(limiter: Limiter, taken: list[int]) -> None:
    """All that looks at a store. The user of the document may not SCAN."""
    place = limiter._options["store"]
    await anames(place)
    await alongest_queues(place)
    with suppress(StoreError):
        await akeys_of(limiter)
    if isinstance(place, str):
        await read_members(registry.store_of(place).topology, encoded(limiter.name))  # type: ignore[attr-defined]


async def updates(limiter: Limiter, taken: list[int]) -> None:
    await limiter.aupdate(Concurrency(MORE), TOKENS)


async def pauses(limiter: Limiter, taken: list[int]) -> None:
    """Callers behind it pass soon."""
    await limiter.apause(0.001)


async def resumes(limiter: Limiter, taken: list[int]) -> None:
    await limiter.aresume()


async def resets(limiter: Limiter, taken: list[int]) -> None:
    """The tokens of others stay theirs: no token of this caller is counted before it acquires."""
    await limiter.areset()


async def flushes(limiter: Limiter, taken: list[int]) -> None:
    await limiter.aflush()


async def closes_another(limiter: Limiter, taken: list[int]) -> None:
    """The test goes on with this one."""
    other = ANOTHER[limiter.name]
    await other.aclose()
    with suppress(LimiterClosedError):
        await other.__aenter__()


async def enters_a_permit(limiter: Limiter, taken: list[int]) -> None:
    permit = await limiter.acquire(tokens=5)
    taken.append(5)
    async with permit:
        await asyncio.sleep(0)


async def calls(limiter: Limiter, taken: list[int]) -> None:
    @limiter
    async def call() -> None:
        await asyncio.sleep(0)

    await call()


async def iterates(limiter: Limiter, taken: list[int]) -> None:
    """Closing a coroutine does not close the generator's step that it waits for (asend().close() of
    CPython 3.11). The generator runs on for ever, and no code can close it.
    """

    @limiter
    async def call() -> Any:
        yield 1
        await asyncio.sleep(0)
        yield 2

    async with aclosing(call()) as items:
        async for _ in items:
            await asyncio.sleep(0)


WATCHED = limiter(on_lost="cancel")
OPENED = limiter(on_store_error="open")
LOCAL = limiter(on_store_error="local", processes=1)

VISITS = {
    "async with limiter": Visit(enters, limiter()),
    "await acquire": Visit(acquires, limiter()),
    "async with acquire": Visit(enters_an_acquire, limiter()),
    "acquire(max_sleep)": Visit(acquires_patiently, limiter()),
    "acquire(on_wait)": Visit(enters_with_on_wait, limiter()),
    "atry_acquire": Visit(tries, limiter()),
    "arelease": Visit(waits_for_its_release, limiter()),
    "arelease in a block": Visit(waits_for_its_release_in_a_block, limiter()),
    "astatus": Visit(looks, limiter()),
    "anames and others": Visit(lists, limiter(), paced=False),
    "aupdate": Visit(updates, limiter(), paced=False),
    "apause": Visit(pauses, limiter(), paced=False),
    "aresume": Visit(resumes, limiter(), paced=False),
    "areset": Visit(resets, limiter(), paced=False),
    "aflush": Visit(flushes, limiter(), paced=False),
    "aclose": Visit(closes_another, beside_another, paced=False),
    "async with permit": Visit(enters_a_permit, limiter()),
    "a coroutine function": Visit(calls, limiter()),
    "an async generator": Visit(iterates, limiter(), closes=False),
    "async with a key": Visit(enters, one_key),
    "acquire of a key": Visit(enters_an_acquire, one_key),
    "astatus of a key": Visit(looks, one_key),
    "LangChain": Visit(passes_langchain, rated, holds=False),
    "PydanticAI": Visit(passes_pydantic_ai, limiter()),
    "Semaphore": Visit(enters, semaphore, paced=False),
    "TokenBucket": Visit(enters_and_counts, bucket, holds=False),
    "RateLimiter": Visit(enters, both_at_once, MEMORY, paced=False),
    "on_lost: async with limiter": Visit(enters, WATCHED, REDIS),
    "on_lost: async with acquire": Visit(enters_an_acquire, WATCHED, REDIS),
    "on_lost: atry_acquire": Visit(tries, WATCHED, REDIS),
    "on_lost: arelease in a block": Visit(waits_for_its_release_in_a_block, WATCHED, REDIS),
    "on_lost: an async generator": Visit(iterates, WATCHED, REDIS, closes=False),
    "on_lost: aresume": Visit(resumes, WATCHED, REDIS, paced=False),
    "on_lost: areset": Visit(resets, WATCHED, REDIS, paced=False),
    "on_lost: aflush": Visit(flushes, WATCHED, REDIS, paced=False),
    "timed: async with limiter": Visit(enters, timed),
    "timed: async with acquire": Visit(enters_an_acquire, timed),
    "timed: atry_acquire": Visit(tries, timed),
    "timed: arelease in a block": Visit(waits_for_its_release_in_a_block, timed),
    "attached: async with limiter": Visit(enters, attached()),
    "attached: await acquire": Visit(acquires, attached()),
    "attached: atry_acquire": Visit(tries, attached()),
    "attached: astatus": Visit(looks, attached(), paced=False),
    "attached: aupdate": Visit(updates, attached(), paced=False),
    "attached: apause": Visit(pauses, attached(), paced=False),
    "attached: aresume": Visit(resumes, attached(), paced=False),
    "attached: areset": Visit(resets, attached(), paced=False),
    "attached, on_lost: await acquire": Visit(acquires, attached(on_lost="cancel"), REDIS),
    "attached, local: await acquire": Visit(
        acquires, attached(on_store_error="local", processes=1), REDIS
    ),
    "undeclared: async with limiter": Visit(enters, undeclared),
    "undeclared: await acquire": Visit(acquires, undeclared),
    "undeclared: atry_acquire": Visit(tries, undeclared),
    "undeclared: astatus": Visit(looks, undeclared, paced=False),
    "undeclared: aupdate": Visit(updates, undeclared, paced=False),
    "local: async with limiter": Visit(enters, LOCAL, REDIS),
    "local: await acquire": Visit(acquires, LOCAL, REDIS),
    "local: acquire(on_wait)": Visit(enters_with_on_wait, LOCAL, REDIS),
    "local: atry_acquire": Visit(tries, LOCAL, REDIS),
    "local: astatus": Visit(looks, LOCAL, REDIS),
    "local: aupdate": Visit(updates, LOCAL, REDIS, paced=False),
    "local: apause": Visit(pauses, LOCAL, REDIS, paced=False),
    "local: aresume": Visit(resumes, LOCAL, REDIS, paced=False),
    "local: areset": Visit(resets, LOCAL, REDIS, paced=False),
    "local: aflush": Visit(flushes, LOCAL, REDIS, paced=False),
    "local, no store: async with limiter": Visit(enters, LOCAL, NOWHERE),
    "local, no store: await acquire": Visit(acquires, LOCAL, NOWHERE),
    "local, no store: acquire(on_wait)": Visit(enters_with_on_wait, LOCAL, NOWHERE),
    "local, no store: atry_acquire": Visit(tries, LOCAL, NOWHERE),
    "local, no store: astatus": Visit(looks, LOCAL, NOWHERE),
    "local, no store: arelease": Visit(waits_for_its_release, LOCAL, NOWHERE),
}
# Without a store and without limits: no caller waits, and no call is counted.
UNLIMITED = {
    "open, no store: async with limiter": Visit(enters, OPENED, NOWHERE),
    "open, no store: async with acquire": Visit(enters_an_acquire, OPENED, NOWHERE),
    "open, no store: atry_acquire": Visit(tries, OPENED, NOWHERE),
    "open, no store: arelease": Visit(waits_for_its_release, OPENED, NOWHERE),
    "open, no store: astatus": Visit(looks_in_vain, OPENED, NOWHERE),
}
