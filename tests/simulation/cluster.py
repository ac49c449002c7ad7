"""Two servers of a Cluster, as clients see them: each has its slots, and a slot moves from one to
the other, key by key.

This module knows which server has which key, and the answers to other calls (MOVED, ASK, TRYAGAIN),
as Redis 7 gives them. The keys of both are in one place, the server's: no key is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.simulation.commands import Failure

PORTS = 7000, 7001
HALF = REDIS_CLUSTER_HASH_SLOTS // 2


class Slots:
    """The slots of the two servers; `there` returns all keys that exist."""

    def __init__(self, there: Callable[[], Collection[bytes]]) -> None:
        self._there = there
        self._owners: dict[int, int] = {}  # by slot, if it has ever moved
        self._targets: dict[int, int] = {}  # of slots that move
        self._gone: set[bytes] = set()  # keys of these that have arrived

    def owner(self, slot: int) -> int:
        return self._owners.get(slot, PORTS[slot // HALF])

    # Moving ---------------------------------------------------------------------------------------

    def begin(self, slot: int) -> bool:
        """Begin to move the slot to the other server. Return whether it was at rest."""
        if slot in self._targets:
            return False
        self._targets[slot] = PORTS[1 - PORTS.index(self.owner(slot))]
        return True

    def move(self, key: bytes) -> None:
        """Move one key of a slot that moves."""
        if key_slot(key) in self._targets and key in self._there():
            self._gone.add(key)

    def end(self, slot: int) -> None:
        """All of the slot has arrived."""
        self._owners[slot] = self._targets.pop(slot)
        self._gone = {key for key in self._gone if key_slot(key) != slot}

    # Asking ---------------------------------------------------------------------------------------

    def check_slot(self, port: int, keys: list[bytes], asking: bool) -> None:
        """Raise the answer of the server at `port` to a call for `keys` that it does not take."""
        slot = key_slot(keys[0])
        owner, target = self.owner(slot), self._targets.get(slot)
        self._gone &= set(self._there())
        here = [
            key for key in keys if key in self._there() and (key in self._gone) == (port == target)
        ]
        if port == owner and target is not None and len(here) < len(keys):
            raise Failure(
                "TRYAGAIN Multiple keys request during rehashing of slot"
                if here
                else f"ASK {slot} :{target}"
            )
        if port == target and asking:
            if len(keys) > 1 and len(here) < len(keys):
                raise Failure("TRYAGAIN Multiple keys request during rehashing of slot")
        elif port != owner:
            raise Failure(f"MOVED {slot} :{owner}")

    def made(self, port: int, keys: list[bytes]) -> None:
        """The keys that a call has made at the target of its slot are there."""
        if port == self._targets.get(key_slot(keys[0])):
            self._gone |= set(keys) & set(self._there())

    def keep(self, port: int, channel: bytes) -> None:
        """Raise the answer of the server at `port` to a subscription to a sharded channel of a slot
        that it does not own.
        """
        if port != self.owner(slot := key_slot(channel)):
            raise Failure(f"MOVED {slot} :{self.owner(slot)}")

    def slots_reply(self) -> list[Any]:
        """CLUSTER SLOTS. A server without a host is the one that the client has asked."""
        begins = {0, HALF, *self._owners, *(slot + 1 for slot in self._owners)} - {
            REDIS_CLUSTER_HASH_SLOTS
        }
        firsts = sorted(begins)
        lasts = [first - 1 for first in [*firsts[1:], REDIS_CLUSTER_HASH_SLOTS]]
        return [
            [first, last, [b"", self.owner(first)]]
            for first, last in zip(firsts, lasts, strict=True)
        ]
