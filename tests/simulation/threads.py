"""Threads of a simulated process: they call on a connection that blocks, and take no time, because
the world stands still meanwhile.

This module has that connection, and its faults: a call arrives, or arrives much later, or its reply
is lost. A thread that would have to wait leaves, because the loop that would wait for it is
simulated, too.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from headgate.stores.redis import routing, threads
from headgate.stores.redis.transport.endpoint import Endpoint
from headgate.stores.redis.transport.portal import NoPortalError
from tests.simulation.loop import World
from tests.simulation.network import LATEST, Network
from tests.simulation.server import Connection

T = TypeVar("T")
TROUBLE = 0.15  # chance that a call or its reply is lost, where the network is not calm


class WouldWait(Exception):
    """A thread could not pass at once."""


def without_loop(act: Callable[[], T]) -> T:
    """Run `act` as in a thread without a running loop."""
    loop = asyncio._get_running_loop()
    events._set_running_loop(None)
    try:
        return act()
    finally:
        events._set_running_loop(loop)


def threaded(world: World, network: Network) -> list[tuple[Any, str, Any]]:
    """The replacements of blocking connections and of the portal for threads."""

    def portal() -> SimpleNamespace:
        if world.here is None:
            raise NoPortalError("a simulated process has none")
        return SimpleNamespace(tell=world.here.call_soon_threadsafe)

    def blocking(work: object, name: str, undo: object = None) -> NoReturn:
        raise WouldWait

    def connection(endpoint: Endpoint, patience: float) -> Blocking:
        return Blocking(network, int(endpoint._settings.get("port", 6379)))

    return [
        (routing, "portal", portal),
        (threads, "blocking", blocking),
        (Endpoint, "blocking", connection),
    ]


class Blocking:
    """A connection as the fast path uses it: when it is connected, it has a socket."""

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._port = port
        self._sock: Socket | None = None

    def connect(self) -> None:
        here = self._network.world.here
        stands_still = self._network.frozen or self._port in self._network.silent
        if here is None or self._network.down or stands_still or self._network.holds(here):
            raise ConnectionRefusedError("nobody listens")
        self._sock = Socket(self._network, self._port)


class Socket:
    """One thread's socket: a call is sent, and its reply is there."""

    def __init__(self, network: Network, port: int) -> None:
        here = network.world.here
        assert here is not None, "a thread is some process's"
        self._network = network
        self._loop = here
        self._chance = network.world.chance(here.name, "thread", network.world.now)
        self._replies: list[bytes] = []
        self._end = Connection(network.server, self._replies.append, port)
        self._trouble: Exception | None = None  # that the next look for a reply raises

    def settimeout(self, patience: float) -> None:
        """No time passes until a reply is overdue, either."""

    def sendall(self, data: bytes) -> None:
        calm = self._network.weather.late == 0.0 and self._network.weather.again == 0.0
        fate = 1.0 if calm else self._chance.random()
        if self._end not in self._network.server.connections:
            raise ConnectionResetError("the server has gone")
        if (
            self._network.stands_still(self._end)
            or self._network.holds(self._loop)
            or fate < TROUBLE
        ):
            self._network.deliver_later(self._end, data, self._chance.randrange(1000, LATEST))
            self._trouble = TimeoutError("no reply")
            return
        self._end.received(data)
        if fate < 2 * TROUBLE:
            self._trouble = ConnectionResetError("the reply is lost")

    def recv(self, most: int) -> bytes:
        if self._trouble is not None:
            raise self._trouble
        replies = b"".join(self._replies)
        self._replies.clear()
        return replies

    def close(self) -> None:
        if self._trouble is None:
            self._end.closed()
