"""The subscriptions of a client: notifications of grants that other processes make to this one.

A subscription has a connection of its own, which outlasts a lost connection for calls. A
notification is a hint: it may come late, twice or never. Every session also asks by itself in time.

On a Cluster with sharded channels (Redis 7, Valkey) each name with waiters has its own channel, on
the server that keeps the name. Everywhere else a client has one channel. A Cluster without sharded
channels (Redis 6.2) carries a notification to all of its servers, so one subscription is enough.

While a slot moves, its old server takes the subscriptions, and its new server answers the calls.
Then the script notifies the channel of the client, which every subscription includes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import HiredisError
from redis.exceptions import ResponseError

from headgate.stores.redis.transport.backoff import backoff
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT, Connection, pack
from headgate.stores.redis.transport.endpoint import is_denied, is_unknown
from headgate.stores.redis.transport.tasks import begun, stop
from headgate.stores.redis.transport.topology import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from weakref import WeakValueDictionary

    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.node import Node, Sender
    from headgate.stores.redis.transport.topology import Topology

LONGEST = 5.0  # The most seconds before another attempt.


class Listener(Protocol):
    """The part of the client that Subscriptions uses."""

    id: str
    loop: asyncio.AbstractEventLoop
    topology: Topology
    senders: WeakValueDictionary[str, Sender]
    nodes: dict[Endpoint, Node]


class Subscriptions:
    def __init__(self, client: Listener) -> None:
        self._client = client
        self._subscribers: dict[Endpoint, Subscriber] = {}

    def listen(self, sender: Sender) -> None:
        """`sender` has waiters: subscribe on the server that answers its calls."""
        if sender.node is None or sender.node.closed:
            return  # The next reply calls this again.
        subscriber = self._subscriber(sender.node.endpoint)
        if sender.key not in subscriber.keys:
            self._leave(sender.key)
            subscriber.join(sender.key)
        subscriber.watch()

    def notifies(self, sender: Sender) -> bool:
        """Whether the server that keeps the name notifies this client."""
        node, topology = sender.node, self._client.topology
        if node is None or (
            topology.several and not (topology.sharded and topology.may_use_functions)
        ):
            # Without sharded channels, the subscription may be at another server. Without
            # functions, a server does not notice that a name is new to it (reply_cache.lua).
            return False
        subscriber = self._subscribers.get(node.endpoint)
        return subscriber is not None and subscriber.is_confirmed(sender.key)

    def lost(self, server: Endpoint, replaced: bool) -> None:
        """The connection for calls to `server` is lost. Drop its subscription, or check it.

        `replaced`: another server may have its names now. An unsharded Cluster has one subscription
        for all servers. If that is dropped, the sessions subscribe elsewhere.
        """
        subscriber, topology = self._subscribers.get(server), self._client.topology
        if subscriber is None:
            return
        unsharded = topology.several and not topology.sharded
        # A sharded subscription is for the names of one server. Without waiters it is useless.
        if replaced or unsharded or (topology.sharded and not subscriber.is_needed()):
            self.drop(server)
        else:
            subscriber.check_alive()

    def drop(self, server: Endpoint) -> None:
        """Close the subscription. Its sessions subscribe on the server that answers their calls."""
        subscriber = self._subscribers.pop(server, None)
        if subscriber is not None:
            subscriber.close()
            self.poll(subscriber.keys)

    def poll(self, keys: Iterable[str]) -> None:
        """Let the sessions of `keys` ask for the notifications that they missed."""
        for key in list(keys):
            if key in self._client.senders:
                self._client.senders[key].poll()

    def do_without_sharding(self) -> None:
        self._client.topology.sharded = False
        for server in list(self._subscribers):
            self.drop(server)

    def halt(self) -> None:
        """Stop the timers: their loop may go on running."""
        for subscriber in self._subscribers.values():
            subscriber.halt()

    def tasks(self) -> list[asyncio.Task[None] | None]:
        return [subscriber.task for subscriber in self._subscribers.values()]

    def _leave(self, key: str) -> None:
        """Another server keeps `key` now: leave the former one, if no call goes there."""
        for server, former in list(self._subscribers.items()):
            former.leave([key])
            if not (server in self._client.nodes or former.is_needed()):
                self.drop(server)

    def _subscriber(self, server: Endpoint) -> Subscriber:
        topology = self._client.topology
        if topology.several and not topology.sharded and self._subscribers:
            return next(iter(self._subscribers.values()))
        if server not in self._subscribers:
            self._subscribers[server] = Subscriber(self, self._client, server)
        return self._subscribers[server]


class Subscriber:
    def __init__(self, subscriptions: Subscriptions, client: Listener, server: Endpoint) -> None:
        # The sessions with these keys had waiters at the last check.
        self.keys: set[str] = set()
        self.task: asyncio.Task[None] | None = None
        self._subscriptions = subscriptions
        self._client = client
        self._server = server
        self._sharded = client.topology.sharded
        self._client_channel = f"headgate:{client.id}"
        self._connection: Connection | None = None
        # Whether the server has confirmed each channel of this connection.
        self._channels: dict[str, bool] = {}
        # The attempts that have ended since the server last confirmed a channel.
        self._attempts = 0
        # When the first command since the last message was sent, by the loop's clock.
        self._asked: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def is_confirmed(self, key: str) -> bool:
        return self._channels.get(self._channel(key), False)

    def join(self, key: str) -> None:
        self.keys.add(key)
        if self._connection is not None and self._channel(key) not in self._channels:
            self._subscribe(self._connection, self._channel(key))

    def leave(self, keys: Iterable[str]) -> None:
        for key in self.keys.intersection(keys):
            self.keys.remove(key)
            channel = self._channel(key)
            if self._sharded and channel in self._channels and self._connection is not None:
                del self._channels[channel]
                self._connection.send(pack(("SUNSUBSCRIBE", channel)))

    def watch(self) -> None:
        """Keep the connection open, and check that the server answers."""
        if self.task is None or self.task.done():
            self.task = begun(self._run(), "headgate-subscriber")
        if self._timer is None:
            self._timer = self._client.loop.call_later(REPLY_TIMEOUT, self.check_alive)

    def is_needed(self) -> bool:
        """Whether any of the names has waiters. The others are left."""
        self.leave([key for key in self.keys if not self._waits(key)])
        return bool(self.keys)

    def check_alive(self) -> None:
        """A network may drop a connection without telling either end: ask for a sign of life."""
        self.halt()
        self._timer = None
        if not self.is_needed() or self._connection is None:
            return
        if self._asked is not None and self._client.loop.time() - self._asked >= REPLY_TIMEOUT:
            self._connection.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))
            return
        if self._asked is None:
            # A repeated SUBSCRIBE changes nothing, and the server confirms it.
            self._subscribe(self._connection, self._channel(next(iter(self.keys))))
        self._timer = self._client.loop.call_later(REPLY_TIMEOUT, self.check_alive)

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.halt()
        if self.task is not None:
            stop(self.task)

    def _channel(self, key: str) -> str:
        return f"{key}:{self._client.id}" if self._sharded else self._client_channel

    def _waits(self, key: str) -> bool:
        return key in self._client.senders and self._client.senders[key].waits

    def _subscribe(self, connection: Connection, channel: str) -> None:
        if self._asked is None:
            self._asked = self._client.loop.time()
        self._channels.setdefault(channel, False)
        connection.send(pack(("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", channel)))

    async def _run(self) -> None:
        """Keep a connection open. Return if it is lost while no session waits."""
        while True:
            if self._attempts:
                await asyncio.sleep(backoff(self._attempts, LONGEST))
            with suppress(Exception):
                await self._connect()
            if not self._attempts:
                # A confirmed channel was lost, or the first attempt has failed. The sessions ask
                # for missed notifications, and say that they receive none now.
                self._subscriptions.poll(self.keys)
            self._attempts += 1
            if not any(map(self._waits, self.keys)):
                return

    async def _connect(self) -> None:
        """Connect, subscribe, and return when the connection is lost."""
        over: asyncio.Future[None] = self._client.loop.create_future()
        connection = await self._server.connected()
        opened = self._connection = Connection(
            connection, self._replied, lambda lost: finished(over)
        )
        try:
            if self._sharded:
                opened.send(pack(("SUBSCRIBE", self._client_channel)))
            for channel in list(map(self._channel, self.keys)):
                if channel not in self._channels:
                    self._subscribe(opened, channel)
            await over
        finally:
            self._connection, self._asked = None, None
            self._channels.clear()
            opened.close()

    def _replied(self, message: Any) -> None:
        """A malformed message ends the connection, and the client connects again."""
        assert self._connection is not None, "it brought the message"
        self._asked = None
        try:
            if isinstance(message, HiredisError):
                self._refused(str(message))
            else:
                self._heard(*message)
        except Exception as senseless:
            self._connection.cut(senseless)

    def _heard(self, kind: bytes, channel: bytes, words: Any) -> None:
        if kind in (b"message", b"smessage"):
            key, _, rest = words.decode().partition(" ")
            if key in self._client.senders:
                self._client.senders[key].on_notification(rest)
        elif kind in (b"subscribe", b"ssubscribe"):
            self._confirmed(channel.decode())
        elif kind == b"sunsubscribe":
            self._lost(channel.decode().rpartition(":")[0])

    def _confirmed(self, channel: str) -> None:
        if self._channels.get(channel, True):
            # It was confirmed before, or is not listed: it was left since, or is the client's own.
            return
        self._attempts, self._channels[channel] = 0, True
        self._subscriptions.poll([channel.rpartition(":")[0]] if self._sharded else self.keys)

    def _lost(self, key: str) -> None:
        """The slot of `key` has moved, unless the subscriber itself has left the channel."""
        self._channels.pop(self._channel(key), None)
        if key in self.keys:
            self.keys.remove(key)
            self._subscriptions.poll([key])  # The reply shows where to subscribe.

    def _refused(self, refusal: str) -> None:
        if self._sharded and refusal.startswith("MOVED "):
            self._forget_slot(int(refusal.split()[1]))
        elif self._sharded and (
            is_denied("SSUBSCRIBE", refusal) or is_unknown("SSUBSCRIBE", refusal)
        ):
            self._subscriptions.do_without_sharding()
        # Without SUBSCRIBE, sharded channels are enough, except while a slot moves.
        elif not (self._sharded and is_denied("SUBSCRIBE", refusal)):
            raise ResponseError(refusal)

    def _forget_slot(self, slot: int) -> None:
        """The slot has moved. The next call of each of its names finds the new server."""
        moved = {key for key in self.keys if slot_of(key) == slot}
        self.keys -= moved
        for key in moved:
            self._channels.pop(self._channel(key), None)


def finished(future: asyncio.Future[None]) -> None:
    if not future.done():  # It may have been cancelled this moment.
        future.set_result(None)
