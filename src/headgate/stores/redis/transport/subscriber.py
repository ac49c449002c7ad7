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
from typing import TYPE_CHECKING, Any

from hiredis import HiredisError
from redis.exceptions import ResponseError

from headgate.stores.redis.transport.connection import Wire, packed
from headgate.stores.redis.transport.endpoint import REPLY_TIMEOUT, is_unknown
from headgate.stores.redis.transport.tasks import begun, pause, stop, trouble_of
from headgate.stores.redis.transport.topology import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.stores.redis.session.session import Lane
    from headgate.stores.redis.transport.client import Link
    from headgate.stores.redis.transport.endpoint import Endpoint

LONGEST = 5.0  # seconds before another attempt, at most


class Ears:
    """All subscriptions of one event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscribers: dict[Endpoint, Subscriber] = {}

    def listen(self, lane: Lane) -> None:
        """`lane` has waiters: subscribe for it, on the server that answers its calls."""
        if lane.peer is None or lane.peer.gone:
            return  # the next reply comes by another connection
        subscriber = self._subscriber(lane.peer.endpoint)
        if lane.key not in subscriber.keys:
            self._leave(lane.key)
            subscriber.join(lane.key)
        subscriber.watch()

    def counts(self, lane: Lane) -> bool:
        """Whether the server that keeps the name counts this link among those that it notifies."""
        peer, topology = lane.peer, self._link.topology
        if peer is None or (topology.several and not (topology.sharded and topology.functions)):
            return False  # a script does not know which server runs it
        subscriber = self._subscribers.get(peer.endpoint)
        return subscriber is not None and subscriber.stands(lane.key)

    def lost(self, server: Endpoint, left: bool) -> None:
        """The connection for calls to `server` is lost; `left`: another server may have its place.

        On a Cluster a subscription that no name needs there is left as well. So is the only one,
        because names that other servers keep need it.
        """
        subscriber, topology = self._subscribers.get(server), self._link.topology
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
            if key in self._link.lanes:
                self._link.lanes[key].look()

    def do_without_sharding(self) -> None:
        """A server of the Cluster has no sharded channels, or this user may not use them."""
        self._link.topology.sharded = False
        for server in list(self._subscribers):
            self.drop(server)

    def tasks(self) -> list[asyncio.Task[None] | None]:
        return [subscriber.task for subscriber in self._subscribers.values()]

    @property
    def _one_is_enough(self) -> bool:
        return self._link.topology.several and not self._link.topology.sharded

    def _leave(self, key: str) -> None:
        """The server that keeps `key` is another one now: leave the former, if no call goes there."""
        for server, former in list(self._subscribers.items()):
            former.leave([key])
            if not (self._link.reaches(server) or former.is_needed()):
                self.drop(server)

    def _subscriber(self, server: Endpoint) -> Subscriber:
        if self._one_is_enough and self._subscribers:
            return next(iter(self._subscribers.values()))
        if server not in self._subscribers:
            self._subscribers[server] = Subscriber(self, self._link, server)
        return self._subscribers[server]


class Subscriber:
    """One connection, subscribed on one server for the names of `keys`."""

    def __init__(self, ears: Ears, link: Link, server: Endpoint) -> None:
        self.keys: set[str] = set()  # of lanes that had waiters at the last look
        self.task: asyncio.Task[None] | None = None
        self._ears = ears
        self._link = link
        self._server = server
        self._sharded = link.topology.sharded
        self._verb = "SSUBSCRIBE" if self._sharded else "SUBSCRIBE"
        self._wire: Wire | None = None
        self._channels: dict[str, bool] = {}  # of this connection, and whether each is confirmed
        self._attempts = 0  # that ended since the server has confirmed a channel
        self._asked: float | None = None  # when, by the loop's clock, if no reply came since
        self._timer: asyncio.TimerHandle | None = None

    def stands(self, key: str) -> bool:
        """Whether the server has confirmed the channel of `key`."""
        return self._channels.get(self._channel(key), False)

    def join(self, key: str) -> None:
        self.keys.add(key)
        if self._wire is not None and self._channel(key) not in self._channels:
            self._subscribe(self._wire, key)

    def leave(self, keys: Iterable[str]) -> None:
        """These names have no waiters any more, or are kept elsewhere."""
        for key in self.keys.intersection(keys):
            self.keys.remove(key)
            if self._sharded:
                self._unsubscribe(self._channel(key))

    def watch(self) -> None:
        """A name has waiters: see to it that the connection stands, and that it answers."""
        if self.task is None or self.task.done():
            self.task = begun(self._run(), "headgate-ears")
        if self._timer is None:
            self._timer = self._link.loop.call_later(REPLY_TIMEOUT, self.make_sure)

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
        if not self.is_needed() or self._wire is None:
            return
        if self._asked is not None and self._link.loop.time() - self._asked >= REPLY_TIMEOUT:
            self._wire.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))
            return
        if self._asked is None:
            self._subscribe(self._wire, next(iter(self.keys)))
        self._timer = self._link.loop.call_later(REPLY_TIMEOUT, self.make_sure)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            stop(self.task)

    def _channel(self, key: str) -> str:
        return f"{key}:{self._link.id}" if self._sharded else self._links_channel

    @property
    def _links_channel(self) -> str:
        return f"headgate:{self._link.id}"

    def _waits(self, key: str) -> bool:
        return key in self._link.lanes and self._link.lanes[key].waits

    def _subscribe(self, wire: Wire, key: str) -> None:
        if self._asked is None:
            self._asked = self._link.loop.time()
        self._channels.setdefault(self._channel(key), False)
        wire.send(packed(self._verb, self._channel(key)))

    def _unsubscribe(self, channel: str) -> None:
        if channel in self._channels and self._wire is not None:
            del self._channels[channel]
            self._wire.send(packed("SUNSUBSCRIBE", channel))

    async def _run(self) -> None:
        """Until the connection is lost at a time when no lane waits: the next one that does begins again."""
        while True:
            if self._attempts:
                await asyncio.sleep(pause(self._attempts, LONGEST))
            await trouble_of(self._connect())
            if not self._attempts:
                self._ears.look(self.keys)  # and say that no notification is received here
            self._attempts += 1
            if not any(map(self._waits, self.keys)):
                return

    async def _connect(self) -> None:
        """Until the connection is lost."""
        over: asyncio.Future[None] = self._link.loop.create_future()
        connection = await self._server.connected()
        wire = self._wire = Wire(connection, self._replied, lambda lost: finished(over))
        try:
            if self._sharded:
                wire.send(packed("SUBSCRIBE", self._links_channel))
            for channel, key in {self._channel(key): key for key in self.keys}.items():
                if channel not in self._channels:
                    self._subscribe(wire, key)
            await over
        finally:
            self._wire, self._asked = None, None
            self._channels.clear()
            wire.close()

    def _replied(self, message: Any) -> None:
        """A message that makes no sense ends the connection: the next one may do better."""
        assert self._wire is not None, "it brought the message"
        self._asked = None
        try:
            if isinstance(message, HiredisError):
                self._refused(str(message))
            else:
                self._heard(*message)
        except Exception as senseless:
            self._wire.cut(senseless)

    def _heard(self, kind: bytes, channel: bytes, words: Any) -> None:
        if kind in (b"message", b"smessage"):
            key, _, rest = words.decode().partition(" ")
            if key in self._link.lanes:
                self._link.lanes[key].heard(rest)
        elif kind in (b"subscribe", b"ssubscribe"):
            self._confirmed(channel.decode())
        elif kind == b"sunsubscribe":
            self._lost(channel.decode().rpartition(":")[0])

    def _confirmed(self, channel: str) -> None:
        if self._channels.get(channel, True):
            return  # known already, or left since; the link's own beside sharded ones is not waited for
        self._attempts, self._channels[channel] = 0, True
        self._ears.look([channel.rpartition(":")[0]] if self._sharded else self.keys)

    def _lost(self, key: str) -> None:
        """The slot of `key` has moved, unless the subscriber itself has left the channel."""
        self._channels.pop(self._channel(key), None)
        if key in self.keys:
            self.keys.remove(key)
            self._ears.look([key])  # and the reply says where to subscribe

    def _refused(self, refusal: str) -> None:
        if self._sharded and refusal.startswith("MOVED "):
            slot = int(refusal.split()[1])
            moved = {key for key in self.keys if slot_of(key) == slot}
            self.keys -= moved  # the next call of each learns where it is
            for key in moved:
                self._channels.pop(self._channel(key), None)
        elif self._sharded and lacks_sharding(refusal):
            self._ears.do_without_sharding()
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
