"""Names are data: each name and each key has a state of its own, in any characters."""

from __future__ import annotations

import asyncio
import gc
import secrets
from enum import Enum
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate, Semaphore, TokenBucket
from headgate.internals import store_of
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.memory.store import FEWEST_QUEUES, MemoryStore
from tests.virtual import VirtualClock
from tests.world import HOUR, World, told, used

# Names that look alike, or that mean something to a key, a pattern, a script, a log or a path.
HOSTILE = [
    *[
        "x",
        "X",
        " x",
        "x ",
        "x  y",
        "x y",
        "é",
        "e\u0301",
        "🙂",
        "👩‍👩‍👧",
        "漢字",
        "\u202e",
        "\ufeff",
    ],
    *[":", "::", "a:b", "a%3Ab", "a%253Ab", "%", "%%", "%s", "%(x)s", "%00", "\0", "\0\0", "a\0b"],
    *[
        "{",
        "}",
        "{}",
        "}{",
        "{x}",
        "x}",
        "{{x}}",
        "[x]",
        "(x)",
        "*",
        "?",
        "x*",
        ".",
        "..",
        "../x",
        "/",
        "//",
        "\\",
    ],
    *[
        "\n",
        "\r\n",
        "\t",
        "x\nSET y 1",
        "$1\r\nx",
        "'",
        '"',
        "`",
        "|",
        ";",
        ",",
        "=",
        "-",
        "-1",
        "~",
        "#",
        "&",
        "+",
    ],
    *[
        "None",
        "nil",
        "0",
        "1e3",
        "KEYS[1]",
        "]]",
        "--",
        "headgate:{x}",
        "x:who",
        "x:log",
        "Semaphore/x",
        "Semaphore%2Fx",
    ],
]
# (name, key) pairs that would be one if they were simply joined.
JOINED = [
    ("a:b", "c"),
    ("a", "b:c"),
    ("a", "b%3Ac"),
    ("a%3Ab", "c"),
    ("a:b:c", None),
    ("a%3Ab:c", None),
    ("a", "b/c"),
]


@told
async def test_hostile_names_share_no_state_and_break_nothing(world: World) -> None:
    """Given one permit under each name, when all are taken, then each was there: no two names share
    a state.
    """
    limiters = [world.limiter(Concurrency(1), name=hostile + world.name) for hostile in HOSTILE]
    permits = await asyncio.gather(*(limiter.atry_acquire() for limiter in limiters))

    assert [hostile for hostile, permit in zip(HOSTILE, permits, strict=True) if not permit] == []
    again = await asyncio.gather(*(limiter.atry_acquire() for limiter in limiters))
    assert [hostile for hostile, permit in zip(HOSTILE, again, strict=True) if permit] == []
    assert all([await permit.arelease() for permit in permits])


@told
async def test_hostile_keys_share_no_state_and_break_nothing(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    permits = await asyncio.gather(*(limiter[key].atry_acquire() for key in HOSTILE))

    assert [key for key, permit in zip(HOSTILE, permits, strict=True) if not permit] == []
    again = await asyncio.gather(*(limiter[key].atry_acquire() for key in HOSTILE))
    assert [key for key, permit in zip(HOSTILE, again, strict=True) if permit] == []
    assert all([await permit.arelease() for permit in permits])


@told
async def test_a_member_of_a_text_enumeration_counts_as_its_text(world: World) -> None:
    """S1: `str(Word.tokens)` is "Word.tokens", and not "tokens". Nevertheless its limits, costs,
    name and key are those of "tokens".
    """
    word = Enum("word", {"tokens": "tokens", "name": world.name}, type=str)
    tokens: Any = word["tokens"]
    counted = world.limiter(Rate(10, per=HOUR, unit=tokens), name=word["name"])
    plain = world.limiter(Rate(10, per=HOUR, unit="tokens"))
    for limiter in (counted, counted[tokens], plain["tokens"]):
        await limiter.acquire(**{tokens: 4})
    counted.drain(**{tokens: 1})

    assert used(await plain.astatus()) == [9]
    assert used(await plain["tokens"].astatus()) == [8]


@told
async def test_a_name_with_a_key_shares_no_state_with_another_pair_that_joins_alike(
    world: World,
) -> None:
    """ "a:b" + "c" is not "a" + "b:c", nor any other pair that joins to the same characters."""
    mark = secrets.token_hex(
        6
    )  # in front: at the end of the name it would stand between name and key

    def limiter(name: str, key: str | None) -> Limiter:
        whole = world.limiter(Rate(1, per=HOUR), name=mark + name)
        return whole if key is None else whole[key]

    first = [pair for pair in JOINED if not await limiter(*pair).atry_acquire()]
    second = [pair for pair in JOINED if await limiter(*pair).atry_acquire()]

    assert (first, second) == ([], [])


@pytest.mark.parametrize("character", ["x", "%", "é", "🙂"])
@told
async def test_the_longest_names_differ_by_their_last_character(
    world: World, character: str
) -> None:
    """256 bytes are allowed in a name and in a key, however long they become in a Redis key."""
    mark = secrets.token_hex(6)
    room = 256 - len(mark) - 1
    long = (
        mark
        + character * (room // len(character.encode()))
        + "x" * (room % len(character.encode()))
    )

    one, other = (world.limiter(Rate(1, per=HOUR), name=long + end)[long + end] for end in "ab")

    assert await one.atry_acquire()
    assert await other.atry_acquire()
    assert not await one.atry_acquire()


@told
async def test_a_limiter_and_the_classics_of_one_name_share_no_state(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    async with (
        limiter,
        Semaphore(world.name, 1, store=world.store),
        TokenBucket(world.name, 1, HOUR, 1, store=world.store),
        world.limiter(Concurrency(1), name=f"Semaphore/{world.name}"),
    ):
        assert used(await limiter.astatus()) == [1]


# Keys ---------------------------------------------------------------------------------------------


@told
async def test_keys_have_the_limits_of_the_whole_and_states_of_their_own(world: World) -> None:
    limiter = world.limiter(Rate(2, per=HOUR))
    await limiter["a"].acquire(2)
    await limiter["b"].acquire()

    assert [used(await limiter[key].astatus()) for key in "abc"] == [[2], [1], [0]]
    assert used(await limiter.astatus()) == [0]


@told
async def test_a_key_means_the_same_state_each_time(world: World) -> None:
    limiter, twin = world.limiter(Rate(1, per=HOUR)), world.limiter(Rate(1, per=HOUR))

    assert await limiter["a"].atry_acquire()

    assert not await limiter["a"].atry_acquire()
    assert not await twin["a"].atry_acquire()


@told
async def test_waiters_of_one_key_do_not_hold_up_another(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    async with limiter["a"]:
        waiter = asyncio.create_task(limiter["a"].acquire().__aenter__())
        async with limiter["b"]:
            pass
        assert not waiter.done()
    (await waiter).release()


@told
async def test_a_key_has_no_keys(world: World) -> None:
    with pytest.raises(TypeError, match="key"):
        world.limiter(Rate(1, per=1))["a"]["b"]


@pytest.mark.proof
def test_the_memory_store_forgets_idle_keys() -> None:
    """The memory store is bounded: it forgets each key that has refilled and that no caller
    holds.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = Limiter("tenants", Rate(10, per=1), Concurrency(5), store=store)

    for number in range(20 * FEWEST_QUEUES):
        with limiter[f"tenant-{number}"]:
            pass
        clock.jump(0.001)

    assert queues_of(store) <= 2 * FEWEST_QUEUES


def test_forgetting_keys_never_forgets_a_debt() -> None:
    """Given keys with a debt or a holder, when thousands of others are used, then they still have
    it.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = Limiter("tenants", Rate(1, per=HOUR), Concurrency(2), store=store)
    permit = limiter["holder"].acquire_sync()
    limiter["spender"].acquire_sync().release()
    clock.jump(HOUR - 1)
    limiter["late"].acquire_sync().release()

    clock.jump(0.5)  # spender and holder lack half a second of their hour
    for number in range(5 * FEWEST_QUEUES):
        assert limiter[f"tenant-{number}"].status().waiting == 0

    assert not limiter["spender"].try_acquire()
    assert not limiter["late"].try_acquire()
    assert limiter["holder"].status().limits[1].used == 1
    permit.release()


def test_a_limiter_that_its_store_forgot_shares_its_state_again() -> None:
    """Given a limiter whose state the store has forgotten while it was idle, when it is used again,
    then the state is shared as before.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    old = Limiter("old", Rate(1, per=10), store=store)
    old.acquire_sync()
    clock.jump(20)
    for number in range(3 * FEWEST_QUEUES):
        Limiter(f"new-{number}", Rate(1, per=10), store=store)

    with old:
        assert not Limiter("old", Rate(1, per=10), store=store).try_acquire()
    assert not old.try_acquire()


def queues_of(store: MemoryStore) -> int:
    """How many states the store keeps alive."""
    gc.collect()
    return sum(
        1
        for thing in gc.get_objects()
        if isinstance(thing, MemoryQueue) and store_of(thing) is store
    )
