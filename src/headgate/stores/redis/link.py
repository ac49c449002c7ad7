"""A link: one event loop's connection to one server, on which the calls of all its lanes travel.

Here live sending, sending again and reconnecting. Each lane has one call on its way at most, and what arrives meanwhile travels in
its next; a lane with nothing on its way sends at once. A call whose reply was lost is sent again, byte for byte: the script knows
its number and does nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hiredis import HiredisError
from redis.exceptions import RedisError, ResponseError

from headgate.errors import StoreError
from headgate.stores.redis.calls import Command
from headgate.stores.redis.endpoint import REPLY_TIMEOUT
from headgate.stores.redis.lane import Lane
from headgate.stores.redis.portal import GUARDIAN
from headgate.stores.redis.script import library
from headgate.stores.redis.wire import Wire, packed

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from headgate.stores.redis.endpoint import Endpoint
    from headgate.stores.redis.line import RedisLine

ATTEMPTS = 3  # connections in a row that may fail before the calls on their way do
BACKOFF = 0.05  # seconds before the second of them, doubled for each further one, with full jitter
FEWEST_LANES = 1024  # lanes that are kept without looking for idle ones
FAREWELL = 1.0  # seconds for the releases of a loop that ends
TRANSIENT = ("LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")  # refused before the script began
LIBRARY = "library"
JITTER = random.SystemRandom()  # not the user's own chance, and another one after a fork
MISSING = ("NOSCRIPT", "ERR Function not found")
LOST = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError)


class Call(NamedTuple):
    """One command on its way."""

    lane: Lane
    command: Command
    sent: float
    by_text: bool = False  # it brings the script that it names


class Link:
    """The connection of one event loop to one server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.id = secrets.token_hex(16)  # 128 bits: nobody else's, after a fork neither
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        self._closed = False
        self.lanes: dict[str, Lane] = {}
        self._most = FEWEST_LANES
        self._sessions = 0
        self._ready: list[Lane] = []
        self._calls: deque[Call | None] = deque()  # None: the library is loaded, for the call behind it
        self._wire: Wire | None = None
        self._saying = False
        self._scripts_until = 0.0  # the library could not be loaded just now
        self._brought: set[str] = set()  # what is being loaded: who needs it too comes behind and need not bring it again
        self._met = False  # the server has answered before
        self._failures = 0
        self._watch: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ears: asyncio.Task[None] | None = None
        self._guardian = self._start(self._guard(), GUARDIAN)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent here any more: some loops are closed without a last word to their tasks."""
        return self._closed or self.loop.is_closed()

    def lane(self, line: RedisLine) -> Lane:
        """The lane of `line` on this link."""
        lane = self.lanes.get(line.key)
        if lane is None or lane.line is not line:
            if len(self.lanes) >= self._most:
                self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.idle()}
                self._most = max(FEWEST_LANES, 2 * len(self.lanes))
            lane = self.lanes[line.key] = Lane(self, line)
        return lane

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of our own: where a loop is closed without a word to its tasks, nobody has to hear that ours were left behind."""
        task = self.loop.create_task(work, name=name)
        with suppress(AttributeError):  # there is no public way, and tasks may be of the user's own making
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio does so for its own
        return task

    def new_session(self) -> str:
        self._sessions += 1
        return f"{self.id}.{self._sessions}"

    # Sending -------------------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """`lane` has something to send: at the end of this turn of the loop, so that who comes together travels together."""
        if not self._ready:
            self.loop.call_soon(self._flush)
        self._ready.append(lane)

    def at_once(self, lane: Lane) -> None:
        """`lane` has something to send, and nothing will travel with it."""
        if self._wire is None or self._saying:  # in the middle of sending, the collector has dropped a permit
            self.ready(lane)
        else:
            self._send(Call(lane, lane.command(), self.loop.time()))

    def _flush(self) -> None:
        if self._wire is None:
            self._open()
            return
        lanes, self._ready = self._ready, []
        for lane in lanes:
            self._send(Call(lane, lane.command(), self.loop.time()))

    def _send(self, call: Call) -> None:
        if self._watch is None:
            self._watch = self.loop.call_later(REPLY_TIMEOUT, self._look_at_calls)
        if self._wire is None:
            self._calls.append(call)
            self._open()
        else:
            self._say(call, self._wire)

    def _say(self, call: Call, wire: Wire) -> None:
        script, words = call.command
        name = ("FCALL", script.function) if self._by_function() else ("EVALSHA", script.digest)
        self._write(call, wire, packed(*name, *words))

    def _write(self, call: Call | None, wire: Wire, command: bytes) -> None:
        """Replies come in the order of what was sent: the collector, which may drop permits anywhere, sends nothing in between."""
        self._saying = True
        self._calls.append(call)
        wire.send(command)
        self._saying = False

    def _replied(self, reply: Any) -> None:
        self._failures, self._met = 0, True
        call = self._calls.popleft()
        if call is None:
            self._loaded(reply)
            return
        if call.by_text:
            self._brought.discard(call.command.script.digest)
        if not (isinstance(reply, HiredisError) and self._send_again(call, str(reply))):
            self._answer(call.lane, reply)
        self._stir()

    def _loaded(self, reply: Any) -> None:
        """The library is there, perhaps because somebody else was faster; where it cannot be now, or ever, scripts will do."""
        self._brought.discard(LIBRARY)
        refusal = str(reply).lower() if isinstance(reply, HiredisError) else ""
        if refusal.startswith(("noperm", "err unknown")):
            self.endpoint.functions = False
        elif refusal and "already exists" not in refusal:
            self._scripts_until = self.loop.time() + REPLY_TIMEOUT

    def _by_function(self) -> bool:
        return self.endpoint.functions and self.loop.time() >= self._scripts_until

    def _stir(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _answer(self, lane: Lane, reply: Any) -> None:
        try:
            lane.answered(reply)
        except Exception as senseless:
            lane.failed(self._cannot(senseless))
            if self._wire is not None:
                self._wire.cut(senseless)

    def _send_again(self, call: Call, refusal: str) -> bool:
        """When the server has refused before anything was done: it gets what it lacks, or a moment."""
        wire = self._wire
        if wire is None:
            return False
        if has_no_functions(refusal):
            self.endpoint.functions = False
            self._say(call, wire)
        elif refusal.startswith(MISSING):
            self._load(call, wire)
        elif not refusal.startswith(TRANSIENT) or self.loop.time() - call.sent > REPLY_TIMEOUT:
            return False
        else:
            self.loop.call_later(BACKOFF, self._send, call)
        return True

    def _load(self, call: Call, wire: Wire) -> None:
        script, words = call.command
        missing = LIBRARY if self._by_function() else script.digest
        if missing in self._brought:
            self._say(call, wire)
            return
        self._brought.add(missing)
        if missing == LIBRARY:
            self._write(None, wire, packed("FUNCTION", "LOAD", library().text))
            self._say(call, wire)
        else:
            self._write(call._replace(by_text=True), wire, packed("EVAL", script.text, *words))

    def _look_at_calls(self) -> None:
        """A server that does not answer in time is as good as gone."""
        self._watch = None
        oldest = next((call for call in self._calls if call), None)
        if oldest is not None:
            left = oldest.sent + REPLY_TIMEOUT - self.loop.time()
            if left > 0:
                self._watch = self.loop.call_later(left, self._look_at_calls)
            elif self._wire is not None:
                self._wire.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))

    # Connecting ----------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._opening is None and not self.closed:
            self._opening = self._start(self._connect(), "headgate-connect")

    async def _connect(self) -> None:
        """Connect, and send what is on its way again; or tell those who wait that it cannot be done."""
        try:
            if self._failures:
                await asyncio.sleep(JITTER.uniform(0, BACKOFF * 2**self._failures))
            connection = self.endpoint.connection()
            await connect(connection, self.endpoint.patience)
            self._wire = Wire(connection, self._replied, self._lose)
        except Exception as lost:
            self._opening = None
            self._lose(lost)
        except asyncio.CancelledError:  # the loop ends, and what is to be said before that still is
            self._opening = None
            raise
        else:
            self._opening = None
            calls, self._calls = filter(None, self._calls), deque()
            for call in calls:
                self._send(call._replace(sent=self.loop.time(), by_text=False))
            self._flush()

    def _lose(self, lost: Exception) -> None:
        """The connection is gone: another one, if the server was there before and somebody waits for it."""
        self._wire = None
        self._brought.clear()
        self._failures += 1
        if self._met and self._failures < ATTEMPTS and isinstance(lost, LOST) and (self._calls or self._ready):
            self._open()
            return
        self._failures = 0
        lanes = [call.lane for call in self._calls if call] + self._ready
        self._calls.clear()
        self._ready = []
        for lane in lanes:
            lane.failed(self._cannot(lost))
        self._stir()

    def _cannot(self, lost: BaseException) -> StoreError:
        return StoreError(
            f"The Redis server at {self.endpoint} cannot be asked ({reason(lost)}). Whether it has run the last call is not known; "
            "what it may have granted is given back as soon as it answers. Check that it runs, can be reached and lets us in."
        )

    # Hearing -------------------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Hear what other processes grant to this one: one subscription, made when somebody waits for the first time."""
        if self._ears is None or self._ears.done():
            self._ears = self._start(self._hear(), "headgate-ears")

    async def _hear(self) -> None:
        attempt = 0
        while True:
            connection = self.endpoint.connection()
            try:
                await connect(connection, self.endpoint.patience)
                await connection.send_command("SUBSCRIBE", f"headgate:{self.id}")
                await connection.read_response()
                attempt = 0
                for lane in self.lanes.values():
                    lane.look()  # what was announced before we listened
                while True:
                    self._heard(await connection.read_response())
            except LOST:
                if not any(lane.waits for lane in self.lanes.values()):
                    return  # the next who waits listens again
                attempt += 1
                await asyncio.sleep(JITTER.uniform(0, min(5.0, BACKOFF * 2**attempt)))
            finally:
                await connection.disconnect(nowait=True)

    def _heard(self, message: Any) -> None:
        if message[0] == b"message":
            key, _, rest = message[2].decode().partition(" ")
            lane = self.lanes.get(key)
            if lane is not None:
                lane.heard(rest)

    # Ending --------------------------------------------------------------------------------------------------------------

    async def _guard(self) -> None:
        """Stay until the loop ends; then let its tasks end, and send what they gave back. What comes later goes another way."""
        try:
            await self.loop.create_future()
        except asyncio.CancelledError:
            for _ in range(3):
                await asyncio.sleep(0)
            await self._say_goodbye()
            raise
        finally:
            self._close()

    def _close(self) -> None:
        self._closed = True
        with suppress(RuntimeError):  # the loop was closed without a word to its tasks
            for pending in (self._ears, self._opening, self._watch):
                if pending is not None:
                    pending.cancel()
            if self._wire is not None:
                self._wire.close()

    async def _say_goodbye(self) -> None:
        if self._wire is None and (self._calls or self._ready):
            self._open()
        try:
            async with asyncio.timeout(FAREWELL):
                while (self._wire or self._opening) and (self._calls or self._ready):
                    self._quiet = self.loop.create_future()
                    await self._quiet
        except TimeoutError:
            pass  # the leases end by themselves


async def connect(connection: AbstractConnection, patience: float) -> None:
    """Connect and log in; redis-py itself would wait for a server that accepts and says nothing."""
    try:
        async with asyncio.timeout(patience):
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


def has_no_functions(refusal: str) -> bool:
    """A server that is too old for functions, or lets this user call none."""
    refusal = refusal.lower()
    unknown = refusal.startswith(("err unknown command 'fcall'", "err unknown command `fcall`"))
    return unknown or (refusal.startswith("noperm") and "'fcall'" in refusal)


def reason(lost: BaseException) -> str:
    """What went wrong in a few words: the server's own, or only the kind of a lost connection, whose text may tell secrets."""
    return str(lost) if isinstance(lost, (ResponseError, StoreError)) else type(lost).__name__
