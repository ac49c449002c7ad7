"""headgate's script alone, and a notification alone: the least cost of a decision for a crowd, and
of a hand-over.

Here is no limiter: no caller is safe, and callers wait only for room that is there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

from benchmarks.peers.bare import EmptyError
from benchmarks.peers.wire import Gate, Talk, loaded, opened, told
from benchmarks.stage import PERIOD, PLENTY, Maker, Opening, Stage

SAY = b"return redis.call('PUBLISH', KEYS[1], '')"


# A crowd that passes by headgate's own decision ---------------------------------------------------


@contextmanager
def bucket(stage: Stage) -> Iterator[Maker]:
    from headgate import Rate

    with deciding(
        stage, Rate(PLENTY, per=PERIOD), lambda calls: Gate(PLENTY, calls.acquire, granted)
    ) as make:
        yield make


def semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from headgate import Concurrency

        with deciding(stage, Concurrency(capacity), Keeper) as make:
            yield make

    return opening


@contextmanager
def deciding(stage: Stage, limit: Any, gate_of: Callable[[Calls], Gate]) -> Iterator[Maker]:
    """The gate of bare trips (connection.py), whose one trip for all is headgate's: so many
    acquires, decided and written down.
    """
    from headgate.gate.compile import Declaration, rules_of
    from headgate.stores.redis.protocol.script import library

    program = Declaration(rules_of([limit])).program
    with opened(stage, Talk()) as talk:
        stage.run(told(talk, "FUNCTION", "LOAD", "REPLACE", library().text))

        yield lru_cache(lambda name: gate_of(Calls(talk, name, program)))


class Calls:
    """The calls of a session for one name, numbered as a session does it."""

    def __init__(self, talk: Talk, name: str, program: str) -> None:
        from headgate.stores.redis.protocol.calls import keys_of

        self._talk = talk
        self._keys = keys_of(f"headgate:{{{name}}}")
        self._program = program
        self._session = f"{secrets.token_hex(16)}.1"
        self._number = self._asked = 0

    def acquire(self, count: int) -> asyncio.Future[Any]:
        from headgate.stores.redis.protocol.script import library

        first, self._asked = self._asked + 1, self._asked + count
        return self._say(library().whole.function, "acquire", first, count, -1, -1, "-")

    def release(self, first: int, count: int) -> asyncio.Future[Any]:
        from headgate.stores.redis.protocol.script import library

        function = library().without_acquires.function
        return self._say(function, "release", self._session, first, count, "-")

    def _say(self, function: str, *words: Any) -> asyncio.Future[Any]:
        from headgate.stores.redis.protocol.calls import RESERVE_AHEAD
        from headgate.stores.redis.protocol.operations import DECLARED, KNOWN

        self._number += 1
        said = KNOWN if self._number > 1 else DECLARED
        header = (
            len(self._keys),
            *self._keys,
            self._program,
            self._session,
            self._number,
            said,
            0,
            0,
            RESERVE_AHEAD,
        )
        return self._talk.ask("FCALL", function, *header, *words)


def granted(reply: bytes) -> None:
    if b" ok " not in reply or b" grant " not in reply:
        raise EmptyError


class Keeper(Gate):
    """The smallest gate of a lease: each caller inside has a number, and a turn goes together."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(PLENTY, calls.acquire, granted)
        self._release = calls.release
        self._asked = 0
        self._held: dict[asyncio.Task[Any] | None, int] = {}
        self._left: list[int] = []

    async def __aenter__(self) -> None:
        self._asked = number = self._asked + 1
        await super().__aenter__()
        self._held[asyncio.current_task()] = number

    async def __aexit__(self, *exc_info: object) -> None:
        if not self._left:
            asyncio.get_running_loop().call_soon(self._give_back)
        self._left.append(self._held.pop(asyncio.current_task()))
        await super().__aexit__()

    def _give_back(self) -> None:
        left, self._left = self._left, []
        self._release(left[0], len(left))  # they leave in the order in which they came


# From process to process --------------------------------------------------------------------------


@contextmanager
def baton(stage: Stage) -> Iterator[Maker]:
    with ExitStack() as stack:
        talk = stack.enter_context(opened(stage, Talk()))
        sha = loaded(stage, talk, SAY)

        def make(name: str) -> Baton:
            its = Baton(talk, sha, name)
            stage.run(said(stack.enter_context(opened(stage, Talk(its.heard))), "SUBSCRIBE", name))
            return its

        yield make


async def said(ears: Talk, *words: str) -> None:
    """A notification is no reply to it."""
    ears.ask(*words)


class Baton:
    """A caller that leaves says so by a script, and the waiter receives it.

    The first of all need not wait.
    """

    def __init__(self, talk: Talk, sha: str, name: str) -> None:
        self._talk = talk
        self._sha = sha
        self._name = name
        self._turn: asyncio.Future[None] | None = None

    def heard(self, message: Any) -> None:
        if message[0] == b"message" and self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def __aenter__(self) -> None:
        self._turn = asyncio.get_running_loop().create_future()
        if await self._talk.ask("SET", self._name, 1, "NX") is None:
            await self._turn

    async def __aexit__(self, *exc_info: object) -> None:
        self._talk.ask("EVALSHA", self._sha, 1, self._name)
