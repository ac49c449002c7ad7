"""A link: one event loop's connection to one server, on which the calls of all its lanes travel.

Here live sending, receiving and reconnecting. What arrives while a round is under way travels in the next one; an idle link sends
at once. A call whose reply was lost is sent again, byte for byte: the script knows its number and does nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headgate.errors import StoreError
from headgate.stores.redis.lane import Command, Lane
from headgate.stores.redis.script import digest, script

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from headgate.stores.redis.endpoint import Endpoint
    from headgate.stores.redis.line import RedisLine

REPLY_TIMEOUT = 5.0  # seconds for the replies of one round
ATTEMPTS = 3  # sendings of one round on a server that was there before
BACKOFF = 0.05  # seconds before the second sending, doubled for each further one, with full jitter
FEWEST_LANES = 1024  # lanes that are kept without looking for idle ones
FAREWELL = 1.0  # seconds for the releases of a loop that ends
TRANSIENT = ("LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")  # refused before the script began
LOST = (RedisConnectionError, RedisTimeoutError, ConnectionError, OSError, TimeoutError, asyncio.IncompleteReadError)


class Link:
    """The connection of one event loop to one server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.id = secrets.token_hex(16)  # 128 bits: nobody else's, after a fork neither
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        self.closed = False
        self.lanes: dict[str, Lane] = {}
        self._sessions = 0
        self._most = FEWEST_LANES
        self._ready: list[Lane] = []
        self._wake: asyncio.Future[None] | None = None
        self._connection: AbstractConnection | None = None
        self._met = False  # the server has answered before
        self._pump = self.loop.create_task(self._run(), name="headgate-link")
        self._ears: asyncio.Task[None] | None = None

    def lane(self, line: RedisLine) -> Lane:
        """The lane of `line` on this link."""
        lane = self.lanes.get(line.key)
        if lane is None or lane.line is not line:
            if len(self.lanes) >= self._most:
                self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.idle()}
                self._most = max(FEWEST_LANES, 2 * len(self.lanes))
            lane = self.lanes[line.key] = Lane(self, line)
        return lane

    def new_session(self) -> str:
        self._sessions += 1
        return f"{self.id}.{self._sessions}"

    # Sending -------------------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """`lane` has something to send: now, if nothing is under way."""
        self._ready.append(lane)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        try:
            while True:
                if not self._ready:
                    self._wake = self.loop.create_future()
                    await self._wake
                    self._wake = None
                await self._round()
        finally:
            await self._farewell()

    async def _round(self) -> None:
        """One call of every lane that is ready. Whatever goes wrong is said to those who wait for it, and ends here."""
        lanes, self._ready = self._ready, []
        try:
            replies = await self._exchange([lane.command() for lane in lanes])
        except Exception as lost:  # noqa: BLE001 - a lost server, a refused log-in, an answer that is no Redis: all the same
            await self._disconnect()
            for lane in lanes:
                lane.failed(self._lost(lost))
            return
        for lane, reply in zip(lanes, replies, strict=True):
            try:
                lane.answered(reply)
            except Exception as senseless:  # noqa: BLE001 - a reply that cannot be read says nothing of the next one
                await self._disconnect()
                lane.failed(self._lost(senseless))

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to `commands`, sent again for as long as it may help."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(commands)
            except LOST:
                if attempt == ATTEMPTS or not self._met:
                    raise
                await self._disconnect()
                await asyncio.sleep(random.uniform(0, BACKOFF * 2**attempt))  # noqa: S311 - jitter, no secret
        raise AssertionError("unreachable")

    async def _once(self, commands: Sequence[Command]) -> list[Any]:
        connection = await self._connected()
        async with asyncio.timeout(REPLY_TIMEOUT):
            packed = [pack_command(("EVALSHA", digest(), *command)) for command in commands]
            await connection.send_packed_command(packed, check_health=False)
            replies = [await _reply(connection) for _ in commands]
            for index, reply in enumerate(replies):
                while isinstance(reply, ResponseError) and _again(reply):
                    await connection.send_command("EVAL", script(), *commands[index])
                    reply = replies[index] = await _reply(connection)
                    if isinstance(reply, ResponseError):
                        await asyncio.sleep(BACKOFF)
        return replies

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            connection = self.endpoint.connection()
            await _connect(connection)
            self._connection, self._met = connection, True
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _hang_up(connection)

    def _lost(self, lost: BaseException) -> StoreError:
        error = StoreError(
            f"The Redis server at {self.endpoint} cannot be asked ({reason(lost)}). Whether it has run the last call is not known; "
            "what it may have granted is given back as soon as it answers. Check that it runs, can be reached and lets us in."
        )
        return error

    # Hearing -------------------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Hear what other processes grant to this one: one subscription, made when somebody waits for the first time."""
        if self._ears is None or self._ears.done():
            self._ears = self.loop.create_task(self._hear(), name="headgate-ears")

    async def _hear(self) -> None:
        attempt = 0
        while True:
            connection = self.endpoint.connection()
            try:
                await _connect(connection)
                await connection.send_command("SUBSCRIBE", f"headgate:{self.id}")
                await connection.read_response()
                attempt = 0
                for lane in self.lanes.values():
                    lane.look()  # what was announced before we listened
                while True:
                    self._heard(await connection.read_response())
            except (*LOST, RedisError):
                attempt += 1
                await asyncio.sleep(random.uniform(0, min(5.0, BACKOFF * 2**attempt)))  # noqa: S311 - jitter, no secret
            finally:
                await _hang_up(connection)

    def _heard(self, message: Any) -> None:
        if message[0] == b"message":
            key, _, rest = message[2].decode().partition(" ")
            lane = self.lanes.get(key)
            if lane is not None:
                lane.heard(rest)

    # Ending --------------------------------------------------------------------------------------------------------------

    async def _farewell(self) -> None:
        """The loop ends: let its tasks end, then send what they gave back. What comes later goes another way."""
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            async with asyncio.timeout(FAREWELL):
                while self._ready and self._met:
                    await self._round()
        except TimeoutError:
            pass  # the leases end by themselves
        finally:
            self.closed = True
            if self._ears is not None:
                self._ears.cancel()
            await self._disconnect()

    async def aclose(self) -> None:
        self._pump.cancel()
        await asyncio.wait([self._pump])


def reason(lost: BaseException) -> str:
    """What went wrong in a few words: the server's own, or only the kind of a lost connection, whose text may tell secrets."""
    return str(lost) if isinstance(lost, (ResponseError, StoreError)) else type(lost).__name__


async def _connect(connection: AbstractConnection) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _again(error: ResponseError) -> bool:
    """Whether the server refused before the script began, and may accept it now."""
    return str(error).startswith(("NOSCRIPT", "No matching script", *TRANSIENT))


async def _hang_up(connection: AbstractConnection) -> None:
    try:
        await connection.disconnect(nowait=True)
    except LOST:
        pass  # it was gone already

