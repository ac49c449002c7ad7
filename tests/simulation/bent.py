"""The replacements of a run for parts of headgate and redis-py: clocks, chance, identities.

This module bends a real process to the world of a simulation, for as long as one run lasts. Threads
that other tests have left live on in their own time.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis.asyncio.connection
import redis.utils

from headgate.stores.redis import fast_path, index, permit_issuer, routing
from headgate.stores.redis.session import loop_session
from headgate.stores.redis.transport import backoff, client, topology
from tests.simulation.loop import World

T = TypeVar("T")
LIGHTER: list[tuple[Any, str, Any]] = [  # work of redis-py for each connection that is not needed
    (redis.utils, "get_lib_version", lambda: "0"),  # it reads a file
    (
        redis.asyncio.connection,
        "copy",
        types.SimpleNamespace(deepcopy=lambda retry: retry),
    ),  # each has one of its own
]
ELSEWHERE = random.SystemRandom()  # the chance of threads that other tests have left


class Jitter:
    """Chance for each process. Objects that are collected while no process runs take none of it,
    and neither do threads of other tests.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread = threading.get_ident()

    def uniform(self, least: float, most: float) -> float:
        if threading.get_ident() != self._thread:
            return ELSEWHERE.uniform(least, most)
        here = self._world.here
        return least if here is None else here.chance.uniform(least, most)

    def choice(self, of: Sequence[T]) -> T:
        return self._chance().choice(of)

    def sample(self, of: Sequence[T], count: int) -> list[T]:
        return self._chance().sample(of, count)

    def _chance(self) -> random.Random:
        here = self._world.here
        return ELSEWHERE if threading.get_ident() != self._thread or here is None else here.chance


@contextmanager
def replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    former = [(where, name, getattr(where, name)) for where, name, _ in changes]
    for where, name, value in changes:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in former:
            setattr(where, name, value)


def bent(world: World) -> list[tuple[Any, str, Any]]:
    """headgate's clocks, chance and identities are the world's."""
    identities = world.chance("identities")
    thread = threading.get_ident()

    def monotonic() -> float:
        if (
            threading.get_ident() != thread
        ):  # other tests have left threads that live in their own time
            return time.monotonic()
        return world.nobodys_time if world.here is None else world.here.time()

    def token_hex(count: int) -> str:
        return (
            identities.randbytes(count).hex()
            if threading.get_ident() == thread
            else secrets.token_hex(count)
        )

    def getpid() -> int:
        return (
            os.getpid() if threading.get_ident() != thread or world.here is None else world.here.pid
        )

    changes: list[tuple[Any, str, Any]] = [
        (module, "monotonic", monotonic)
        for name, module in list(sys.modules.items())
        if name.startswith("headgate.") and getattr(module, "monotonic", None) is time.monotonic
    ]
    changes += [(backoff, "JITTER", Jitter(world)), (topology, "CHANCE", Jitter(world))]
    changes += [
        (module, "secrets", types.SimpleNamespace(token_hex=token_hex))
        for module in (client, fast_path)
    ]
    changes += [
        (module, "os", types.SimpleNamespace(getpid=getpid))
        for module in (permit_issuer, routing, client, fast_path, loop_session, index)
    ]
    return [*changes, (logging.getLogger("headgate"), "disabled", True)]
