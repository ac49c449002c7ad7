"""The refresh of the index: about once a minute, a client names the limiters that it uses, and
labels its sessions. When its loop ends, it names those that it has used since the last refresh.

A timer of the client's loop does this beside the calls of sessions. After a failure an operator
sees less, and callers notice nothing. listing.py and members.py read the index.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from headgate.stores.process_label import own_label
from headgate.stores.redis.protocol.index import ID_LENGTH, LABELS, NAMES, write_label, write_names
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.transport.node import NOT_NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.errors import StoreError
    from headgate.stores.redis.fast_path import FastPath
    from headgate.stores.redis.protocol.index import Refresh
    from headgate.stores.redis.session.numbering import Numbering
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.node import Node

# Seconds until the first refresh of a client, and between two refreshes.
FIRST, EVERY = 5.0, 60.0
# Seconds for which the end of a loop waits for the last refresh, at most.
LAST = 0.25
# Seconds for which a call is retried.
RETRY_PERIOD = 2.0
# A server that refuses a call with these errors may accept a later one.
TEMPORARY = (*NOT_NOW, "OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK")


class Store(Protocol):
    def used_fast_path(self) -> FastPath | None: ...


class Refresher:
    """The refreshes of one client. For its transport, this is a `Sender`."""

    optional, waits = True, False  # a `Sender` without callers

    def __init__(
        self, client: Client, store: Callable[[], Store | None], named: dict[str, float]
    ) -> None:
        """`store` is a weak reference: a store that is dropped ends its clients. `named` has the
        moment when this process last sent each name to the index, by the monotonic clock.
        """
        self.node: Node | None = None
        self.met: bool | None = None
        self._client = client
        self._store = store
        self._named = named
        # Of each session at the last refresh: its id, and the number of its last acquire.
        self._seen: set[tuple[str, int]] = set()
        # The sessions that began since then, one for each name. They are noted here because they
        # may end before the next refresh.
        self._new: dict[str, Numbering] = {}
        # The calls that are still to be sent, and the one in flight.
        self._calls: list[Refresh] = []
        self._sent: Refresh | None = None
        self._finished: asyncio.Future[None] | None = None  # of the last refresh
        # The key that has the label of a client or fast path, by the beginning of its id.
        self._label_keys: dict[str, tuple[str, ...]] = {}
        # From 0.9 to 1.1, so that processes that start at one moment do not refresh at one moment.
        self._pace = 0.9 + int(client.id[:2], 16) / 1280
        client.lifecycle.before_end = self.finish
        self._refresh_in(FIRST)

    def note_new(self, session: LoopSession) -> None:
        name = base_of(session.queue.name)
        # One session that has acquired is enough, because it shows that the name is used.
        if name not in self._new or not self._new[name].last_acquire:
            self._new[name] = session.machine.numbering

    def _refresh_in(self, seconds: float) -> None:
        self._client.loop.call_later(seconds * self._pace, refresh_index, ref(self))

    def refresh(self) -> None:
        client = self._client
        if not self._may_send():
            return
        self._refresh_in(EVERY)
        names = self._take_names()
        if names and client.availability.met:
            self._note_named(names)
            label = own_label()._replace(pid=client.process)
            labels = [
                write_label(each, label, self._label_keys.get(each[:ID_LENGTH], LABELS))
                for each in self._session_ids()
            ]
            self._calls += [*labels, *write_names(names)]
            client.sending.ready(self)

    async def finish(self) -> None:
        """At the end of the loop, send the names that were used since the last refresh. Leave out
        those that this process has sent within a minute.

        So a process that lives for a second is in the index.
        """
        client = self._client
        if not self._may_send():
            return
        recent = self._recent()
        names = [name for name in self._take_names() if name not in recent]
        if names and client.availability.met and not client.availability.unavailable:
            self._note_named(names)
            self._calls += write_names(names)
            self._finished = client.loop.create_future()
            client.sending.ready(self)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST):
                    await self._finished

    def _may_send(self) -> bool:
        client = self._client
        return not client.closed and client.process == os.getpid() and client.topology.may_index

    def _take_names(self) -> list[str]:
        return sorted({base_of(name) for name in self._used_names()})

    def _recent(self) -> dict[str, float]:
        # Loops in other threads may add names meanwhile, hence the copy.
        now = monotonic()
        return {name: t for name, t in self._named.copy().items() if now - t < EVERY}

    def _note_named(self, names: list[str]) -> None:
        for name in self._named.copy().keys() - self._recent().keys():
            self._named.pop(name, None)
        self._named.update(dict.fromkeys(names, monotonic()))

    def _session_ids(self) -> Iterator[str]:
        yield self._client.id
        if (path := self._fast_path()) is not None:
            yield path.id

    def _used_names(self) -> Iterator[str]:
        """The names with an acquire since the refresh before, with a waiter, or with a held permit.

        A process that only looks at a name does not use it.
        """
        new, self._new = self._new, {}
        yield from (name for name, numbering in new.items() if numbering.last_acquire)
        former, self._seen = self._seen, set()
        for session in [*self._client.senders.values(), *self._client.adopted]:
            if isinstance(session, LoopSession):
                numbering = session.machine.numbering
                last = numbering.session_id, numbering.last_acquire
                self._seen.add(last)
                asked = numbering.last_acquire > 0 and last not in former
                if asked or session.waits or session.machine.renewal.held:
                    yield session.queue.name
        if (path := self._fast_path()) is not None:
            names, path.names = path.names, set()
            yield from names

    def _fast_path(self) -> FastPath | None:
        store = self._store()
        return None if store is None else store.used_fast_path()

    # The methods of a `Sender`, which the client calls --------------------------------------------

    @property
    def key(self) -> str:
        return NAMES  # all keys of the index are on one server

    def command(self) -> Refresh | None:
        """The next call. In the child of a fork there is none: it would use the parent's
        connection.
        """
        if self._calls and self._client.process == os.getpid():
            self._sent = self._calls.pop()
            return self._sent
        return None

    def answered(self, reply: Any) -> None:
        """After a permanent refusal, no client of this store sends another refresh. Each refusal
        adds a line to the server's ACL LOG.
        """
        if not isinstance(reply, Exception):
            self._note_label_key(reply)
            if self._calls:
                self._client.sending.ready(self)
            else:
                self._end()
            return
        self._end()
        if not str(reply).startswith(TEMPORARY):
            self._client.topology.may_index = False

    def _note_label_key(self, reply: Any) -> None:
        """The reply is the position of the key that got the label. Later refreshes name only this
        key.
        """
        sent, self._sent = self._sent, None
        if sent is not None and len(sent.keys) > 1 and reply in range(1, len(sent.keys) + 1):
            self._label_keys[sent.members[0][:ID_LENGTH]] = (sent.keys[reply - 1],)

    def failed(self, error: StoreError) -> None:
        """The server is away. The next refresh names what is used then."""
        self._end()

    def _end(self) -> None:
        self._calls = []
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def retry_periods(self) -> list[float | None]:
        return [RETRY_PERIOD]

    def put_off(self) -> None:
        """An exception came before the call was written: it is the next one again."""
        if self._sent is not None:
            self._calls.append(self._sent)
            self._sent = None

    def on_disconnect(self, lost: BaseException, spent: float) -> None:
        """Do nothing: the client sends the call in flight again."""

    def on_notification(self, notification: str) -> None:
        """Do nothing: no notification names the index."""

    def poll(self) -> None:
        """Do nothing: no caller waits, and there is no backlog."""

    def doubt(self) -> None:
        """Do nothing: the next refresh names what is used then."""


def base_of(name: str) -> str:
    """The name without a key."""
    return name.partition(":")[0]


def refresh_index(refresher_of: Callable[[], Refresher | None]) -> None:
    """Refresh now, if the refresher still exists. `refresher_of` is a weak reference."""
    refresher = refresher_of()
    if refresher is not None:
        refresher.refresh()
