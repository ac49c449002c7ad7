"""The subscriptions of a link: notifications of what other processes grant to this one.

A subscription stands beside the connection for calls, on the same server. It ends when its server
is left, and outlasts a connection for calls that is lost: a grant is heard of while that is made
anew. A notification is a hint: it may come late, twice or never, and every lane asks by itself in
time.

On a Cluster with sharded channels (Redis 7, Valkey) each name with waiters has a channel of its own,
on the server that keeps the name. Everywhere else a link has one channel. A Cluster without sharded
channels (Redis 6.2) carries a notification to all of its servers: one subscription is enough.

While a slot moves, the server that gives it away takes the subscriptions, and the one that takes it
answers the calls. Then the script notifies the channel of the link, which every subscription has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import HiredisError
from redis.exceptions import ResponseError

from headgate.stores.redis.transport.connection import Connection, packed
from headgate.stores.redis.transport.endpoint import REPLY_TIMEOUT, is_unknown
from headgate.stores.redis.transport.tasks import begun, pause, stop, trouble_of
from headgate.stores.redis.transport.topology import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.node import Sender
    from headgate.stores.redis.transport.topology import Topology

LONGEST = 5.0  # seconds before another attempt, at most


class Listener(Protocol):
    """What the subscriptions ask of the client that has made them."""

    @property
    def id(self) -> str: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def senders(self) -> MutableMapping[str, Sender]: ...
    def reaches(self, server: Endpoint) -> bool: ...


class Subscriptions:
    """All subscriptions of one event loop."""

    def __init__(self, client: Listener) -> None:
        self._client = client
        self._subscribers: dict[Endpoint, Subscriber] = {}

    def listen(self, sender: Sender) -> None:
        """`lane` has waiters: subscribe for it, on the server that answers its calls."""
        if sender.node is None or sender.node.closed:
            return  # the next reply comes by another connection
        subscriber = self._subscriber(sender.node.endpoint)
        if sender.key not in subscriber.keys:
            self._leave(sender.key)
            subscriber.join(sender.key)
        subscriber.watch()

    def counts(self, sender: Sender) -> bool:
        """Whether the server that keeps the name counts this link among those that it notifies."""
        node, topology = sender.node, self._client.topology
        if node is None or (topology.several and not (topology.sharded and topology.functions)):
            return False  # a script does not know which server runs it
        subscriber = self._subscribers.get(node.endpoint)
        return subscriber is not None and subscriber.stands(sender.key)

    def lost(self, server: Endpoint, left: bool) -> None:
        """The connection for calls to `server` is lost; `left`: another server may have its place.

        On a Cluster a subscription that no name needs there is left as well. So is the only one,
        because names that other servers keep need it.
        """
        subscriber, topology = self._subscribers.get(server), self._client.topology
        if subscriber is None:
            return
        if left or (topology.several and not (topology.sharded and subscriber.is_needed())):
            self.drop(server)
        else:
            subscriber.make_sure()

    def drop(self, server: Endpoint) -> None:
        """No call goes to `server` any more.

        The lanes with waiters ask for news, and subscribe where they are answered.
        """
        subscriber = self._subscribers.pop(server, None)
        if subscriber is not None:
            subscriber.close()
            self.look(subscriber.keys)

    def look(self, keys: Iterable[str]) -> None:
        """The lanes of `keys` ask for what was announced while they were not subscribed."""
        for key in list(keys):
            if key in self._client.senders:
                self._client.senders[key].look()

    def do_without_sharding(self) -> None:
        """A server of the Cluster has no sharded channels, or this user may not use them."""
        self._client.topology.sharded = False
        for server in list(self._subscribers):
            self.drop(server)

    def halt(self) -> None:
        """Stop the timers. Their loop may run on."""
        for subscriber in self._subscribers.values():
            subscriber.halt()

    def tasks(self) -> list[asyncio.Task[None] | None]:
        return [subscriber.task for subscriber in self._subscribers.values()]

    @property
    def _one_is_enough(self) -> bool:
        return self._client.topology.several and not self._client.topology.sharded

    def _leave(self, key: str) -> None:
        """The server that keeps `key` is another one now: leave the former, if no call goes there."""
        for server, former in list(self._subscribers.items()):
            former.leave([key])
            if not (self._client.reaches(server) or former.is_needed()):
                self.drop(server)

    def _subscriber(self, server: Endpoint) -> Subscriber:
        if self._one_is_enough and self._subscribers:
            return next(iter(self._subscribers.values()))
        if server not in self._subscribers:
            self._subscribers[server] = Subscriber(self, self._client, server)
        return self._subscribers[server]


class Subscriber:
    """One connection, subscribed on one server for the names of `keys`."""

    def __init__(self, subscriptions: Subscriptions, client: Listener, server: Endpoint) -> None:
        self.keys: set[str] = set()  # of lanes that had waiters at the last look
        self.task: asyncio.Task[None] | None = None
        self._subscriptions = subscriptions
        self._client = client
        self._server = server
        self._sharded = client.topology.sharded
        self._verb = "SSUBSCRIBE" if self._sharded else "SUBSCRIBE"
        self._connection: Connection | None = None
        self._channels: dict[str, bool] = {}  # of this connection, and whether each is confirmed
        self._attempts = 0  # that ended since the server has confirmed a channel
        self._asked: float | None = None  # when, by the loop's clock, if no reply came since
        self._timer: asyncio.TimerHandle | None = None

    def stands(self, key: str) -> bool:
        """Whether the server has confirmed the channel of `key`."""
        return self._channels.get(self._channel(key), False)

    def join(self, key: str) -> None:
        self.keys.add(key)
        if self._connection is not None and self._channel(key) not in self._channels:
            self._subscribe(self._connection, key)

    def leave(self, keys: Iterable[str]) -> None:
        """These names have no waiters any more, or are kept elsewhere."""
        for key in self.keys.intersection(keys):
            self.keys.remove(key)
            if self._sharded:
                self._unsubscribe(self._channel(key))

    def watch(self) -> None:
        """A name has waiters: see to it that the connection stands, and that it answers."""
        if self.task is None or self.task.done():
            self.task = begun(self._run(), "headgate-subscriber")
        if self._timer is None:
            self._timer = self._client.loop.call_later(REPLY_TIMEOUT, self.make_sure)

    def is_needed(self) -> bool:
        """Whether a lane waits for news from here. Names without waiters are left."""
        self.leave([key for key in self.keys if not self._waits(key)])
        return bool(self.keys)

    def make_sure(self) -> None:
        """Ask whether the connection stands, and cut it if the server has not answered in time.

        A network may forget a connection without a word. So a subscriber asks from time to time,
        and when the connection for calls beside it is lost.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_needed() or self._connection is None:
            return
        if self._asked is not None and self._client.loop.time() - self._asked >= REPLY_TIMEOUT:
            self._connection.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))
            return
        if self._asked is None:
            self._subscribe(self._connection, next(iter(self.keys)))
        self._timer = self._client.loop.call_later(REPLY_TIMEOUT, self.make_sure)

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.halt()
        if self.task is not None:
            stop(self.task)

    def _channel(self, key: str) -> str:
        return f"{key}:{self._client.id}" if self._sharded else self._client_channel

    @property
    def _client_channel(self) -> str:
        return f"headgate:{self._client.id}"

    def _waits(self, key: str) -> bool:
        return key in self._client.senders and self._client.senders[key].waits

    def _subscribe(self, connection: Connection, key: str) -> None:
        if self._asked is None:
            self._asked = self._client.loop.time()
        self._channels.setdefault(self._channel(key), False)
        connection.send(packed(self._verb, self._channel(key)))

    def _unsubscribe(self, channel: str) -> None:
        if channel in self._channels and self._connection is not None:
            del self._channels[channel]
            self._connection.send(packed("SUNSUBSCRIBE", channel))

    async def _run(self) -> None:
        """Until the connection is lost at a time when no lane waits: the next one that does begins again."""
        while True:
            if self._attempts:
                await asyncio.sleep(pause(self._attempts, LONGEST))
            await trouble_of(self._connect())
            if not self._attempts:
                self._subscriptions.look(self.keys)  # and say that no notification is received here
            self._attempts += 1
            if not any(map(self._waits, self.keys)):
                return

    async def _connect(self) -> None:
        """Until the connection is lost."""
        over: asyncio.Future[None] = self._client.loop.create_future()
        connection = await self._server.connected()
        wire = self._connection = Connection(connection, self._replied, lambda lost: finished(over))
        try:
            if self._sharded:
                wire.send(packed("SUBSCRIBE", self._client_channel))
            for channel, key in {self._channel(key): key for key in self.keys}.items():
                if channel not in self._channels:
                    self._subscribe(wire, key)
            await over
        finally:
            self._connection, self._asked = None, None
            self._channels.clear()
            wire.close()

    def _replied(self, message: Any) -> None:
        """A message that makes no sense ends the connection: the next one may do better."""
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
                self._client.senders[key].heard(rest)
        elif kind in (b"subscribe", b"ssubscribe"):
            self._confirmed(channel.decode())
        elif kind == b"sunsubscribe":
            self._lost(channel.decode().rpartition(":")[0])

    def _confirmed(self, channel: str) -> None:
        if self._channels.get(channel, True):
            return  # known already, or left since; the link's own beside sharded ones is not waited for
        self._attempts, self._channels[channel] = 0, True
        self._subscriptions.look([channel.rpartition(":")[0]] if self._sharded else self.keys)

    def _lost(self, key: str) -> None:
        """The slot of `key` has moved, unless the subscriber itself has left the channel."""
        self._channels.pop(self._channel(key), None)
        if key in self.keys:
            self.keys.remove(key)
            self._subscriptions.look([key])  # and the reply says where to subscribe

    def _refused(self, refusal: str) -> None:
        if self._sharded and refusal.startswith("MOVED "):
            slot = int(refusal.split()[1])
            moved = {key for key in self.keys if slot_of(key) == slot}
            self.keys -= moved  # the next call of each learns where it is
            for key in moved:
                self._channels.pop(self._channel(key), None)
        elif self._sharded and lacks_sharding(refusal):
            self._subscriptions.do_without_sharding()
        elif not (
            self._sharded and denied("SUBSCRIBE", refusal)
        ):  # sharded channels suffice, but while a slot moves
            raise ResponseError(refusal)


def lacks_sharding(refusal: str) -> bool:
    """A server that is too old for sharded channels, or lets this user subscribe to none."""
    return denied("SSUBSCRIBE", refusal) or is_unknown("SSUBSCRIBE", refusal)


def denied(command: str, refusal: str) -> bool:
    """Whether this user may not use `command`."""
    return refusal.startswith("NOPERM") and f"'{command.lower()}'" in refusal.lower()


def finished(future: asyncio.Future[None]) -> None:
    if not future.done():  # it may have been cancelled this moment
        future.set_result(None)
