"""The network between processes and the server: bytes that are late, held, torn, cut off, or
delivered unexpectedly.

This module has the faults of a connection. Within one connection bytes keep their order, as they do
in TCP; between connections there is no order. Bytes on a connection that was cut may still arrive,
and a call may arrive twice.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple, cast

from tests.simulation.loop import SECOND, ProcessLoop, World
from tests.simulation.server import Connection, Server

CALLS = (b"FCALL", b"EVALSHA")
LATEST = 15 * SECOND  # for which the network keeps bytes that it delivers late


class Weather(NamedTuple):
    """The state of the network in one run."""

    delay: int  # microseconds that bytes take, mostly
    spikes: float  # chance that they take up to `spike`
    spike: int
    torn: float  # chance that they come in pieces
    late: float  # chance that bytes in flight on a connection that was cut arrive later
    again: float  # chance that a call is delivered once more, later

    def takes(self, chance: Random) -> int:
        if chance.random() < self.spikes:
            return chance.randrange(self.delay, self.spike)
        return int(self.delay * (0.5 + chance.random()))


CALM = Weather(delay=300, spikes=0.0, spike=1000, torn=0.0, late=0.0, again=0.0)


class Network:
    """All connections to one server."""

    def __init__(self, world: World, server: Server, weather: Weather) -> None:
        self.world = world
        self.server = server
        self.weather = weather
        self.down = False  # no process is connected
        self.frozen = (
            False  # the server is stopped: its system accepts connections, and keeps the bytes
        )
        self.silent: set[int] = set()  # ports of a Cluster at which the same is true of one server
        self.cables: list[Cable] = []
        self._held: dict[str, bool] = {}  # by process: no bytes pass, and none are lost
        self._made: dict[str, int] = {}
        self._waiting: list[tuple[Cable, bytes]] = []  # for a frozen server

    async def connect(self, loop: ProcessLoop, protocol: Any, port: int) -> asyncio.Transport:
        self._made[loop.name] = count = self._made.get(loop.name, 0) + 1
        chance = self.world.chance(loop.name, "connection", count)
        await asyncio.sleep(2 * self.weather.takes(chance) / SECOND)
        while self.holds(loop):  # noqa: ASYNC110  # a process asks again until it is answered
            await asyncio.sleep(0.1)
        if self.down:
            raise ConnectionRefusedError("nobody listens")
        cable = Cable(self, loop, protocol, chance, port)
        self.cables.append(cable)
        protocol.connection_made(cable.transport)
        return cable.transport

    def holds(self, loop: ProcessLoop) -> bool:
        return self._held.get(loop.name, False)

    def hold(self, name: str, held: bool) -> None:
        """No bytes pass between a process and the server, until they do again."""
        self._held[name] = held
        for cable in self.cables_of(name):
            cable.up.stir()
            cable.down.stir()

    def cables_of(self, name: str) -> list[Cable]:
        return [cable for cable in self.cables if cable.loop.name == name]

    def reach_server(self, cable: Cable, data: bytes) -> None:
        if self.stands_still(cable.end):
            self._waiting.append((cable, data))
        else:
            cable.end.received(data)

    def deliver_later(self, end: Connection, data: bytes, delay: int) -> None:
        """Deliver on a connection that no process has any more. The answer is lost, and a server
        that is killed receives nothing.
        """

        def arrive() -> None:
            if end in self.server.connections and not self.stands_still(end):
                end.received(data)
            end.closed()

        self.world.after(delay, arrive)

    def stands_still(self, end: Connection) -> bool:
        return self.frozen or end.port in self.silent

    def thaw(self) -> None:
        self.frozen = False
        self.silent.clear()
        self._deliver()

    def end_silence(self, port: int) -> None:
        self.silent.discard(port)
        self._deliver()

    def _deliver(self) -> None:
        """Deliver the bytes that were kept for a server that goes on."""
        waiting, self._waiting = self._waiting, []
        for cable, data in waiting:
            if cable in self.cables or not self.down:
                self.reach_server(cable, data)

    def lose_server(self) -> None:
        """The server is killed: all its connections break, and bytes on their way to it are
        lost.
        """
        self._waiting = []
        for cable in list(self.cables):
            cable.cut(late=False)
        self.server.connections.clear()


class Pipe:
    """One direction of a connection: bytes arrive in order."""

    def __init__(self, cable: Cable) -> None:
        self._cable = cable
        self._way: list[tuple[int, bytes]] = []  # on its way, and when it arrives
        self._last = 0
        self._planned = False

    def send(self, data: bytes) -> None:
        cable = self._cable
        weather, world = cable.network.weather, cable.network.world
        pieces = [data]
        if weather.torn and cable.chance.random() < weather.torn and len(data) > 1:
            at = cable.chance.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._last = max(self._last, world.now + weather.takes(cable.chance))
            self._way.append((self._last, piece))
        self.stir()

    def stir(self) -> None:
        if self._way and not self._planned and not self._cable.held:
            self._planned = True
            self._cable.network.world.at(self._way[0][0], self._arrive)

    def _arrive(self) -> None:
        self._planned = False
        if self._way and not self._cable.held:
            _, data = self._way.pop(0)
            self._cable.arrived(self, data)
            self.stir()

    def take(self) -> bytes:
        """Take out the bytes that are on their way."""
        way, self._way = self._way, []
        return b"".join(data for _, data in way)


class Cable:
    """One connection, until one of both ends closes it or it is cut."""

    def __init__(
        self, network: Network, loop: ProcessLoop, protocol: Any, chance: Random, port: int
    ) -> None:
        self.network = network
        self.loop = loop
        self.chance = chance
        self.up, self.down = Pipe(self), Pipe(self)
        self.end = Connection(network.server, self._from_server, port)
        self.transport = Transport(self, protocol)
        self.open = True

    @property
    def held(self) -> bool:
        return self.network.holds(self.loop)

    def to_server(self, data: bytes) -> None:
        weather = self.network.weather
        if self.open:
            self.up.send(data)
            if (
                weather.again
                and self.chance.random() < weather.again
                and any(call in data for call in CALLS)
            ):
                self._arrive_later(
                    Connection(self.network.server, lambda reply: None, self.end.port), data
                )

    def _from_server(self, data: bytes) -> None:
        if self.open and not self.network.stands_still(
            self.end
        ):  # a notification of the other server is lost there
            self.down.send(data)

    def arrived(self, pipe: Pipe, data: bytes) -> None:
        if pipe is self.up:
            self.network.reach_server(self, data)
        else:
            self.loop.do(self.transport.received, data)

    def _arrive_later(self, end: Connection, data: bytes) -> None:
        self.network.deliver_later(end, data, self.chance.randrange(1000, LATEST))

    def cut(self, late: bool = True) -> None:
        """Both ends learn of it. Bytes on their way are lost, or those that were sent arrive much
        later.
        """
        if not self.open:
            return
        data = self.up.take()
        self.down.take()
        if late and data and self.chance.random() < self.network.weather.late:
            self.open = False
            self.network.cables.remove(self)
            self._arrive_later(self.end, data)
        else:
            self.close()
        self.loop.do(self.transport.lost, ConnectionResetError("cut"))

    def close(self) -> None:
        self.open = False
        if self in self.network.cables:
            self.network.cables.remove(self)
        self.end.closed()

    def leave(self, at_once: bool) -> None:
        """The client hangs up: its bytes still arrive, unless it aborts."""
        if self.open:
            data = self.up.take()
            self.open = False
            delay = self.network.weather.takes(self.chance)
            self.network.world.after(
                delay, lambda: self._end(b"" if at_once and self.chance.random() < 0.5 else data)
            )

    def _end(self, data: bytes) -> None:
        if data and self in self.network.cables and not self.network.down:
            self.network.reach_server(self, data)
        self.close()


class Transport(asyncio.Transport):
    """The client's end, as asyncio has it."""

    def __init__(self, cable: Cable, protocol: Any) -> None:
        super().__init__({"peername": ("server", 6379)})
        self._cable = cable
        self._protocol = protocol
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._cable.to_server(bytes(data))

    def received(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return (
            self._closing or self._cable.loop.is_closed()
        )  # the connections of a dead process are closed by its system

    def close(self) -> None:
        self._hang_up(at_once=False)

    def abort(self) -> None:
        self._hang_up(at_once=True)

    def _hang_up(self, at_once: bool) -> None:
        if not self._closing:
            self._closing = True
            self._cable.leave(at_once)
            self._cable.loop.call_soon(self._protocol.connection_lost, None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def pause_reading(self) -> None:
        """No client sends that much here."""

    def resume_reading(self) -> None:
        """As above."""

    def can_write_eof(self) -> bool:
        return False
