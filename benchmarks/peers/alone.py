"""headgate's script alone, and an announcement alone: the least that a decision for a crowd costs, and a hand-over.

What lives here is no limiter and no client: nothing is kept in the process, nobody is safe, nothing comes back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

from benchmarks.peers.bare import EmptyError
from benchmarks.peers.wire import Gate, Talk, loaded, opened, told
from benchmarks.stage import PERIOD, PLENTY, Maker, Opening, Stage

SAY = b"return redis.call('PUBLISH', KEYS[1], '')"


# A crowd that is let in by headgate's own decision ------------------------------------------------------------------------------


@contextmanager
def bucket(stage: Stage) -> Iterator[Maker]:
    from headgate import Rate

    with deciding(stage, Rate(PLENTY, per=PERIOD)) as make:
        yield make


def semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from headgate import Concurrency

        with deciding(stage, Concurrency(capacity)) as make:
            yield make

    return opening


@contextmanager
def deciding(stage: Stage, limit: Any) -> Iterator[Maker]:
    """The gate of bare trips (wire.py), whose one trip for all is headgate's: so many acquires, decided and written down."""
    from headgate.gate.rules import Declaration, rules_of
    from headgate.stores.redis.calls import DECLARED
    from headgate.stores.redis.lane import HORIZON
    from headgate.stores.redis.line import keys_of
    from headgate.stores.redis.script import library

    program, function = Declaration(rules_of([limit])).program, library().whole.function
    with opened(stage, Talk()) as talk:
        stage.run(told(talk, "FUNCTION", "LOAD", "REPLACE", library().text))

        def make(name: str) -> Gate:
            keys = keys_of(f"headgate:{{{name}}}", log=False)
            header = (len(keys), *keys, program, f"{secrets.token_hex(16)}.1", 1, DECLARED, 0, HORIZON)
            return Gate(PLENTY, lambda entering: talk.ask("FCALL", function, *header, "acquire", 1, entering, -1, -1, "-"), granted)

        yield lru_cache(make)


def granted(reply: bytes) -> None:
    if b" ok " not in reply or b" grant " not in reply:
        raise EmptyError


# From process to process ---------------------------------------------------------------------------------------------------------


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
    """What is heard is no reply to it."""
    ears.ask(*words)


class Baton:
    """Whoever leaves says so by a script, and whoever waits hears it. The first of all need not wait."""

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
