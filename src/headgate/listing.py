"""Which limiters a store has: names, keys, and the longest queues.

These functions only look: they declare nothing, and an unknown name stays unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headgate.errors import StoreError
from headgate.interfaces import Lists
from headgate.internals import store_of as store_behind
from headgate.limiter import Limiter
from headgate.stores.registry import StoreLike, store_of
from headgate.stores.status import QueueLength
from headgate.validation import show


def names(store: StoreLike = None) -> list[str]:
    """The names of the limiters in use, sorted. `store`: as for a `Limiter`.

        for name in headgate.names("redis://localhost:6379"):
            print(name, Limiter.attach(name, store="redis://localhost:6379").status())

    In memory: all names of this process whose limits were declared. On Redis: those that any
    process has used within the last five minutes. A name appears there some seconds after its first
    acquire, or when its process ends. Keys and the classics are not among them.

    On Redis this asks the server, and blocks the thread for one round trip and a connection: in a
    coroutine, use `anames`. Raises StoreError when the store cannot be asked; ValueError and
    TypeError for a bad `store`.
    """
    return store_of(store).lists.names()


async def anames(store: StoreLike = None) -> list[str]:
    """`names` for coroutines."""
    return await store_of(store).lists.anames()


def keys_of(limiter: Limiter) -> list[str]:
    """The keys of `limiter` that its store knows, sorted: `"tenant-7"` for `limiter["tenant-7"]`.

    In memory: the keys of this process whose limits were declared, until they are forgotten. On
    Redis: the keys that any process has used, until they are as good as new.

    On Redis each server goes through all its keys, also those of other programs. That takes about
    two seconds for a million keys, in steps of a thousand, and needs the right `+scan`. It blocks
    the thread meanwhile: in a coroutine, use `akeys_of`. Raises StoreError when the store cannot be
    asked or refuses, and TypeError for anything but a whole `Limiter`.
    """
    return lists_of(limiter, "keys_of").keys(limiter.name)


async def akeys_of(limiter: Limiter) -> list[str]:
    """`keys_of` for coroutines."""
    return await lists_of(limiter, "akeys_of").akeys(limiter.name)


def longest_queues(store: StoreLike = None) -> list[QueueLength]:
    """The ten queues in which the most acquires wait, the longest first. Queues without waiters are
    left out. `store`: as for a `Limiter`.

    In memory these are the queues of names and keys. On Redis they are those of `names(store)`, and
    not of keys. They may count waiters of a dead process for some seconds.

    On Redis this asks for each name, a thousand in one round trip, and blocks the thread meanwhile:
    in a coroutine, use `alongest_queues`. Raises the errors of `names`.
    """
    return store_of(store).lists.longest()


async def alongest_queues(store: StoreLike = None) -> list[QueueLength]:
    """`longest_queues` for coroutines."""
    return await store_of(store).lists.alongest()


class LastNames:
    """The names that a function lists. While it fails, they are those of its last success.

    One server of a Cluster has the index. While it is away, the others may answer all the same.
    """

    def __init__(self, read: Callable[[], Awaitable[list[str]]], timeout: float) -> None:
        self._read = read
        self._timeout = timeout  # seconds
        self._last: list[str] = []
        self.trouble = ""  # why the last `read` failed; "": it did not

    async def read(self) -> list[str]:
        """Raises StoreError if there was no success yet."""
        try:
            async with asyncio.timeout(self._timeout):
                self._last, self.trouble = await self._read(), ""
        except TimeoutError:
            self.trouble = f"The index of names has not answered within {self._timeout:g} s."
        except StoreError as error:
            self.trouble = f"The index of names cannot be read. {error}"
        if self.trouble and not self._last:
            raise StoreError(self.trouble)
        return self._last


def lists_of(limiter: Limiter, call: str) -> Lists:
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{call}({show(limiter)}) lists the keys of a Limiter: give it one.")
    if limiter.key is not None:
        raise TypeError(
            f"{call}() got limiter {limiter.name!r}[{limiter.key!r}], which is one key: give it "
            "the whole limiter."
        )
    lists: Lists = store_behind(limiter).lists
    return lists
