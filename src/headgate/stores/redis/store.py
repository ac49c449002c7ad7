"""The store on one Redis server: its lines by name, and one link for each event loop that uses it.

Here lives who talks to the server from where; a store may be made before any loop runs, and outlives all of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from headgate.gate.rules import Declaration
from headgate.stores.redis.address import topology_of
from headgate.stores.redis.lane import Lane
from headgate.stores.redis.line import RedisLine, check_windows
from headgate.stores.redis.link import Link
from headgate.stores.redis.portal import portal_loop
from headgate.stores.redis.shortcut import Shortcut
from headgate.stores.redis.topology import Topology
from headgate.stores.waiters import no_loop


class RedisStore:
    """The limiters of one Redis server."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._lock = threading.Lock()
        self._lines: WeakValueDictionary[str, RedisLine] = WeakValueDictionary()
        self._links: dict[asyncio.AbstractEventLoop, Link] = {}
        self._shortcut: Shortcut | None = None
        STORES.add(self)

    def line(self, name: str, declared: Declaration) -> RedisLine:
        """The line of `name`; nothing is sent before the first acquire."""
        check_windows(name, declared)
        line = self._lines.get(name) or self._new_line(name, declared)
        line.follow(declared)
        return line

    def _new_line(self, name: str, declared: Declaration) -> RedisLine:
        """Unless another thread was faster."""
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = RedisLine(self, name, declared)
            return line

    def lane(self, line: RedisLine) -> Lane:
        """The lane of `line` in the running loop."""
        return self.link().lane(line)

    def link(self) -> Link:
        """The connections of the running loop."""
        loop = asyncio._get_running_loop()
        if loop is None:
            raise no_loop()
        link = self._links.get(loop)
        if link is None or link.closed:
            with self._lock:
                closed = [link for link in self._links.values() if link.closed]
                self._links = {loop: link for loop, link in self._links.items() if not link.closed}
                link = self._links[loop] = Link(self.topology)
            for each in closed:
                each.end()  # some loops are closed without a last word to their tasks
        return link

    def away(self, key: str) -> bool:
        """Whether the server that has `key` was looked for in vain just now. Who asks has it looked for until it answers."""
        loop = asyncio._get_running_loop() or portal_loop()
        link = None if loop is None else self._links.get(loop)
        return link is not None and link.away(key)

    def shortcut(self) -> Shortcut:
        """The blocking connection of this process."""
        with self._lock:
            if self._shortcut is None:
                self._shortcut = Shortcut(self.topology)
            return self._shortcut

    def forked(self) -> None:
        """In the child of a fork: connections, sessions and identities are the parent's; ours are made anew."""
        self._lock = threading.Lock()
        for link in self._links.values():
            link.forked()
        self._links = {}
        self._shortcut = None
        for line in list(self._lines.values()):
            line.forked()

    def __str__(self) -> str:
        return f"Redis at {self.topology}"


STORES: WeakSet[RedisStore] = WeakSet()
_by_client: WeakKeyDictionary[Any, RedisStore] = WeakKeyDictionary()


def redis_store(where: Any) -> RedisStore:
    """A store for a URL, which is remembered by who asks; the store of a client object: the same one for the same."""
    if isinstance(where, str):
        return RedisStore(topology_of(where))
    try:
        found = _by_client.get(where)
    except TypeError:  # not something that could be a client either
        found = None
    if found is None:
        found = _by_client[where] = RedisStore(topology_of(where))
    return found


def _after_fork() -> None:
    for store in list(STORES):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
