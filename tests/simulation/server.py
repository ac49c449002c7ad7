"""A Redis server in this process: headgate's real Lua, run by Lua itself, beside the keys that it
works on.

This module has the server's answer to a command that arrives, and the state that it loses when it
starts again. Its connections bring the bytes; its caller moves the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hiredis import Reader
from redis.crc import key_slot

from tests.simulation.cluster import Slots
from tests.simulation.commands import Failure, Keyspace, Reply, Simple
from tests.simulation.machine import Machine

OK = Simple("OK")


class Call(NamedTuple):
    """One script that was run."""

    name: str  # of the function, or the digest of the script
    keys: list[bytes]
    args: tuple[str, ...]
    reply: Reply  # without Failure's text: the writes of a failed call stay
    unheard: tuple[str, ...] = ()  # the clients that received no notification of it
    run: int = 0  # when the server was first called by the library; 0: a script was run


class Server:
    """One server: `answers` the commands of a connection, `start`s again with or without its
    data.
    """

    def __init__(self, clock: Callable[[], int], functions: bool = True) -> None:
        self._clock = clock
        self._functions = functions
        self._at = (
            0  # the time of the clock when the present call began: it stands still during the call
        )
        self.ran: Callable[[Call], None] = lambda call: None
        self.published: Callable[[bytes, bytes], bool] = lambda channel, message: (
            True
        )  # False: it is lost
        self.failed: Callable[[str], None] = lambda error: (
            None
        )  # called with the text of a script that has failed
        self.keys = Keyspace(lambda: self._at)
        self.forget_scripts()
        self.full = False  # out of memory
        self.loading_until = 0
        self.replica = False
        self.slots: Slots | None = None  # of a Cluster, both of whose servers this is
        self.connections: list[Connection] = []
        self._unheard: list[str] = []  # by the call that is being run
        self._listeners: dict[bytes, list[Connection]] = {}
        self._port = 0  # at which the call that is being run has arrived

    # Life -----------------------------------------------------------------------------------------

    def look(self) -> Keyspace:
        """The keys, as they are this moment."""
        self._at = self._clock()
        return self.keys

    def start(self, copy: bytes | None, keeps_scripts: bool = False) -> None:
        """From an old copy, or empty. Another machine has the loaded scripts only if they were
        copied, too.
        """
        self._at = self._clock()
        self.keys.restore(copy)
        self._listeners = {}
        if not keeps_scripts:
            self.forget_scripts()

    def forget_scripts(self) -> None:
        self._machines: dict[int, Machine] = {}  # by port: each server of a Cluster has its own
        self._runs: dict[int, int] = {}

    def _machine(self, port: int) -> Machine:
        if port not in self._machines:
            self._machines[port] = Machine(self._within, lambda error: self.failed(error))
        return self._machines[port]

    def left(self, connection: Connection) -> None:
        self.connections.remove(connection)
        for listeners in self._listeners.values():
            if connection in listeners:
                listeners.remove(connection)

    # Commands -------------------------------------------------------------------------------------

    def answer(self, connection: Connection, words: list[bytes]) -> Reply:
        self._at = self._clock()
        name = words[0].upper()
        if name in (b"FCALL", b"EVALSHA", b"EVAL"):
            self._ready()
            return self._call(connection, name, words)
        if name in (b"SUBSCRIBE", b"SSUBSCRIBE", b"SUNSUBSCRIBE") and (
            name == b"SUBSCRIBE" or self._shards
        ):
            return self._subscribe(connection, name, words[1])
        if name == b"PING":
            self._ready()
            return Simple("PONG")
        if name == b"INFO":
            return b"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
        if name == b"FUNCTION" and self._functions:
            self._ready()
            return self._machine(connection.port).load_library(words[2])
        if name in (b"CLIENT", b"SELECT"):
            return OK
        if self.slots is not None:
            return self._of_cluster(self.slots, connection, name, words)
        raise Failure(f"ERR unknown command '{words[0].decode()}', with args beginning with: ")

    def _ready(self) -> None:
        if self._at < self.loading_until:
            raise Failure("LOADING Redis is loading the dataset in memory")

    def _of_cluster(
        self, slots: Slots, connection: Connection, name: bytes, words: list[bytes]
    ) -> Reply:
        if name == b"ASKING":
            connection.asking = True
            return OK
        if name == b"CLUSTER":
            self._ready()
            return slots.slots_reply()
        asking, connection.asking = connection.asking, False
        slots.check_slot(connection.port, [words[1]], asking)
        reply = self.keys.call(words)  # a key that is made by itself
        slots.made(connection.port, [words[1]])
        return reply

    def _call(self, connection: Connection, verb: bytes, words: list[bytes]) -> Reply:
        asking, connection.asking = connection.asking, False
        self._port = connection.port
        if verb == b"FCALL" and not self._functions:
            raise Failure("ERR unknown command 'FCALL', with args beginning with: ")
        machine, run = self._machine(connection.port), 0
        its = machine.functions if verb == b"FCALL" else machine.scripts
        name = machine.load_script(words[1]) if verb == b"EVAL" else words[1]
        if name not in its:
            raise Failure(
                "ERR Function not found"
                if verb == b"FCALL"
                else "NOSCRIPT No matching script. Please use EVAL."
            )
        if self.replica:
            raise Failure("READONLY You can't write against a read only replica.")
        if self.full and not name.endswith(b"_back"):
            raise Failure("OOM command not allowed when used memory > 'maxmemory'.")
        count = int(words[2])
        keys, args = words[3 : 3 + count], words[3 + count :]
        if self.slots is not None:
            self.slots.check_slot(connection.port, keys, asking)
        self._unheard = []
        if verb == b"FCALL":
            run = self._runs.setdefault(connection.port, self.keys.microseconds())
        reply = machine.run(its[name], name.decode(), keys, args)
        if self.slots is not None:
            self.slots.made(connection.port, keys)
        if is_of_index(keys[0]):
            return reply  # no state of a name has changed
        self.ran(
            Call(
                name.decode(),
                keys,
                tuple([word.decode() for word in args]),
                reply,
                tuple(self._unheard),
                run,
            )
        )
        return reply

    def _within(self, words: list[bytes]) -> Reply:
        """A command that a script calls."""
        if words[0] == b"PUBLISH":
            return self._publish(b"message", words[1], words[2])
        if words[0] == b"SPUBLISH":
            if not self._shards:
                raise Failure("ERR Unknown Redis command called from script")
            return self._publish(b"smessage", words[1], words[2])
        return self.keys.call(words)

    def _publish(self, kind: bytes, channel: bytes, message: bytes) -> int:
        """To all subscribers; in a sharded channel, to those on the server that runs the script."""
        listeners = self._listeners.get(channel, [])
        if kind == b"smessage":
            listeners = [listener for listener in listeners if listener.port == self._port]
        link = channel.decode().rpartition(":")[2]
        if kind == b"message" and self._shards and link in self._unheard:
            self._unheard.remove(
                link
            )  # the script tries all servers, whose receivers it does not count
        elif not listeners:
            self._unheard.append(link)
        if self.published(channel, message):
            for listener in listeners:
                listener.say([kind, channel, message])
        return len(listeners)

    def _subscribe(self, connection: Connection, name: bytes, channel: bytes) -> Reply:
        if name != b"SUBSCRIBE" and self.slots is not None:
            self.slots.keep(connection.port, channel)
        listeners = self._listeners.setdefault(channel, [])
        if name == b"SUNSUBSCRIBE":
            self._listeners[channel] = [
                listener for listener in listeners if listener is not connection
            ]
        elif connection not in listeners:
            listeners.append(connection)
        return [name.lower(), channel, 1]

    @property
    def _shards(self) -> bool:
        """Whether it has sharded channels: a Cluster of Redis 7."""
        return self._functions and self.slots is not None

    def end_move(self, slot: int) -> None:
        """The slot has arrived: subscribers of its channels at the source lose their subscriptions,
        and are notified of that.
        """
        assert self.slots is not None, "it is the slot of a Cluster"
        self.slots.end(slot)
        for channel, listeners in self._listeners.items():
            for listener in [
                each for each in listeners if listener_lost(channel, each, slot, self.slots)
            ]:
                listeners.remove(listener)
                listener.say([b"sunsubscribe", channel, 0])


def is_of_index(key: bytes) -> bool:
    """Whether `key` holds no name's state, but the index of names."""
    return key.startswith(b"headgate:{/index}:")


def listener_lost(channel: bytes, listener: Connection, slot: int, slots: Slots) -> bool:
    return b"{" in channel and key_slot(channel) == slot and listener.port != slots.owner(slot)


class Connection:
    """The server's end of one connection: bytes come in, and `send` takes those that go out."""

    def __init__(self, server: Server, send: Callable[[bytes], None], port: int = 6379) -> None:
        self.port = port
        self.asking = False  # the next call may be of a slot that is moving here
        self._server = server
        self._send = send
        self._reader = Reader()
        server.connections.append(self)

    def received(self, data: bytes) -> None:
        """Half a command is dropped with its connection."""
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            try:
                reply = self._server.answer(self, words)
            except Failure as failure:
                reply = failure
            self.say(reply)

    def say(self, reply: Reply) -> None:
        self._send(written(reply))

    def closed(self) -> None:
        if self in self._server.connections:
            self._server.left(self)


def written(reply: Reply) -> bytes:
    """As RESP 2 has it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Failure):
        return f"-{' '.join(str(reply).splitlines())}\r\n".encode()
    if isinstance(reply, Simple):
        return f"+{reply}\r\n".encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))
