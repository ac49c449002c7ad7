"""Questions to the servers of a store that change nothing, each on a connection of its own.

They go beside the calls of clients, so an operator who looks delays no caller. If a server does not
answer, or does not have a key any more, the store is asked where the key is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from headgate.stores.redis.transport.connection import REPLY_TIMEOUT
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot, refused
from headgate.stores.redis.transport.tasks import begun, stop

if TYPE_CHECKING:
    from headgate.errors import StoreError
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

T = TypeVar("T")
# How often a question is asked, and the seconds between two attempts.
ATTEMPTS, PAUSE = 3, 0.1
# After these refusals the same question may be answered, here or elsewhere.
ELSEWHERE = MovedError, AskError, TryAgainError, ClusterDownError
# The key that decides which server gets a command, and the command.
Question = tuple[str, Sequence[str]]


async def replies_to(topology: Topology, call: str, questions: Sequence[Question]) -> list[Any]:
    """The replies, in order. `call`: the user's call, for an error.

    Raises StoreError when a server refuses a command or cannot be asked.
    """
    return await in_own_task(persistently(topology, call, lambda: replies_now(topology, questions)))


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
    topology: Topology, call: str, ask: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    for attempt in range(ATTEMPTS):
        try:
            if attempt or not topology.servers():
                await asyncio.sleep(PAUSE * attempt)
                await topology.look(())
            return await ask()
        except LOST as error:
            trouble = error
            if isinstance(error, (ResponseError, AuthenticationError)) and not isinstance(
                error, ELSEWHERE
            ):
                break
    raise error_of(topology, call, trouble)


async def replies_now(topology: Topology, questions: Sequence[Question]) -> list[Any]:
    """Each server gets its questions in one round trip."""
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


def error_of(topology: Topology, call: str, trouble: Exception) -> StoreError:
    if isinstance(trouble, ResponseError):
        return refused(topology, f"{call}/", str(trouble), trouble)
    return cannot(topology, trouble)
