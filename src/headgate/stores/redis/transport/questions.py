"""Questions to the servers of a store that change nothing, each on a connection of its own.

They go beside the calls of clients, so an operator who looks delays no caller. If a server does not
answer, or does not have a key any more, the store is asked where the key is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from headgate.errors import StoreError
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot, refused
from headgate.stores.redis.transport.tasks import begun, stop

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

T = TypeVar("T")
# How often a question is asked, and the seconds between two attempts.
ATTEMPTS, PAUSE = 3, 0.1
CHUNK = 1000  # the questions of one round trip
# After these refusals the same question may be answered, here or elsewhere.
ELSEWHERE = MovedError, AskError, TryAgainError, ClusterDownError
# The key that decides which server gets a command, and the command.
Question = tuple[str, Sequence[str]]


async def replies_to(topology: Topology, call: str, questions: Sequence[Question]) -> list[Any]:
    """The replies, in order. `call`: the user's call, for an error.

    Raises StoreError when a server refuses a command or cannot be asked.
    """
    replies = await replies_or_errors(topology, call, questions)
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


async def replies_or_errors(
    topology: Topology, call: str, questions: Sequence[Question], timeout: float | None = None
) -> list[Any]:
    """The replies, in order. If a server refuses a question, cannot be asked, or takes longer than
    `timeout` seconds in all, its StoreError is in place of its replies.

    Raises StoreError when no server is known.
    """
    return await in_own_task(ask_servers(topology, call, questions, timeout))


async def ask_servers(
    topology: Topology, call: str, questions: Sequence[Question], timeout: float | None
) -> list[Any]:
    # This asks nothing, but it finds the servers if none is known.
    await persistently(topology, call, lambda: asyncio.sleep(0))
    replies: list[Any] = [None] * len(questions)

    async def ask(server: Endpoint | None, indexes: list[int]) -> None:
        place = f"{server.place}, of {topology}," if server and topology.several else topology
        try:
            async with asyncio.timeout(timeout):
                for start in range(0, len(indexes), CHUNK):
                    chunk = indexes[start : start + CHUNK]
                    its = [questions[index] for index in chunk]
                    found = await persistently(
                        topology, call, partial(ask_once, topology, its), place
                    )
                    for index, reply in zip(chunk, found, strict=True):
                        replies[index] = reply
        except (StoreError, TimeoutError) as error:
            trouble = error if isinstance(error, StoreError) else cannot(place, error)
            for index in indexes:
                replies[index] = trouble

    parts: dict[Endpoint | None, list[int]] = {}
    for index, (key, _) in enumerate(questions):
        parts.setdefault(topology.where(key), []).append(index)
    await asyncio.gather(*(ask(server, indexes) for server, indexes in parts.items()))
    return replies


async def scan(topology: Topology, call: str, pattern: str) -> set[str]:
    """The keys of all primaries that fit `pattern`. Each server looks at all its keys, in steps of
    about a thousand. Raises StoreError as `replies_to` does.
    """

    async def scan_all() -> set[str]:
        found: set[str] = set()
        for server in topology.servers():
            found |= await scan_one(server, pattern)
        return found

    return await in_own_task(persistently(topology, call, scan_all))


async def in_own_task(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` in another task: redis-py would turn an exception that interrupts it into an
    error of the connection.
    """
    task = begun(work, "headgate-look")
    try:
        return await task
    finally:
        if not task.done():
            stop(task)


async def persistently(
    topology: Topology, call: str, ask: Callable[[], Coroutine[Any, Any, T]], place: object = None
) -> T:
    """The result of `ask`, which may be repeated. A server that was silent is not asked again: it
    would be silent for as long. `place`: for an error, where it is not the whole store.
    """
    trouble: Exception | None = None
    for attempt in range(ATTEMPTS):
        try:
            if attempt or not topology.servers():
                await asyncio.sleep(PAUSE * attempt)
                found_others = await look_again(topology)
                if isinstance(trouble, TimeoutError) and not found_others:
                    break
            return await ask()
        except LOST as error:
            trouble = error
            if is_final(error):
                break
    assert trouble is not None
    raise store_error_of(place or topology, call, trouble)


def is_final(error: Exception) -> bool:
    """Whether each server would refuse in this way."""
    is_refusal = isinstance(error, (ResponseError, AuthenticationError))
    return is_refusal and not isinstance(error, ELSEWHERE)


async def look_again(topology: Topology) -> bool:
    """Ask where the servers are. Return whether they are others than before."""
    before = set(topology.servers())
    await topology.look(suspects=())
    return before != set(topology.servers())


async def ask_once(topology: Topology, questions: Sequence[Question]) -> list[Any]:
    """The replies, in order. Each server gets its questions in one round trip."""
    by_server: dict[Endpoint, list[int]] = {}
    for index, (key, _) in enumerate(questions):
        server = topology.where(key)
        if server is None:
            raise NotThereError("no server has this name's slot")
        by_server.setdefault(server, []).append(index)
    replies: dict[int, Any] = {}
    for server, indexes in by_server.items():
        its = await server.asked_all([questions[index][1] for index in indexes])
        replies |= zip(indexes, its, strict=True)
    return [replies[index] for index in range(len(questions))]


async def scan_one(server: Endpoint, pattern: str) -> set[str]:
    found: set[str] = set()
    async with server.talk() as connection:
        cursor = b"0"
        while True:
            async with asyncio.timeout(REPLY_TIMEOUT):
                await connection.send_command("SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
                cursor, keys = await connection.read_response()
            found.update(key.decode() for key in keys)
            if cursor == b"0":
                return found


def store_error_of(place: object, call: str, trouble: Exception) -> StoreError:
    if isinstance(trouble, ResponseError):
        # The slash marks the name of a call: see `title`.
        return refused(place, f"{call}/", str(trouble), trouble)
    return cannot(place, trouble)
