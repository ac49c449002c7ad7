"""Tools of the scenarios of faults: limiters as of another process, counters, and the server's own
view of a name.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from redis import Redis
from redis.client import NEVER_DECODE

from headgate import Limiter, Permit, StoreError
from headgate.limits import Limit
from headgate.stores.redis.transport import endpoint
from tests.processes import Running
from tests.world import long, soon, waiting

T = TypeVar("T")
Slack = Callable[[], float]  # the fixture `slack`


TIMEOUTS = count(1)  # microseconds


def client_of_its_own(url: str) -> Redis:
    """A client whose store no other client and no URL shares, because its connections differ in a
    microsecond.
    """
    return Redis.from_url(
        url, socket_connect_timeout=endpoint.CONNECT_TIMEOUT + next(TIMEOUTS) / 1_000_000
    )


def elsewhere(name: str, *limits: Limit | str, url: str, **options: Any) -> Limiter:
    """A limiter with a connection and a session of its own, as in another process."""
    return Limiter(name, *limits, store=client_of_its_own(url), **options)


async def eventually(condition: Callable[[], object], within: float | None = None) -> None:
    """Go on when `condition` holds."""
    async with asyncio.timeout(long() if within is None else within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def once_back(ask: Callable[[], Awaitable[T]]) -> T:
    """The result of `ask`, as soon as the server is back. An attempt that began before that may
    still fail.
    """
    async with asyncio.timeout(long()):
        while True:
            try:
                return await ask()
            except StoreError:
                await asyncio.sleep(0.01)


async def believed_until(permit: Permit) -> float:
    """Wait until the permit is lost, and return the last moment at which it was not. A busy machine
    may look late.
    """
    last = monotonic()
    async with asyncio.timeout(long()):
        while True:
            now = monotonic()
            if permit.lost:
                return last
            last = now
            await asyncio.sleep(0.001)


async def enter(limiter: Limiter, cost: int = 1, **units: int) -> Permit:
    """For a task: acquire, and return the permit."""
    return await limiter.acquire(cost, **units)


async def visit(limiter: Limiter) -> None:
    """Enter and leave."""
    async with limiter:
        pass


async def has_listened(limiter: Limiter, other: Limiter) -> None:
    """Let a caller wait in this loop, so that it is subscribed and has asked for earlier
    notifications.
    """
    holder = await other.acquire()
    caller = asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    holder.release()
    await (await soon(caller)).arelease()


class Room:
    """Counts how many callers are inside of one process at a time, and how many ever were (S1)."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.visits = 0

    def __enter__(self) -> None:
        self.inside += 1
        self.visits += 1
        self.most = max(self.most, self.inside)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inside -= 1


class Breaths:
    """In place of chance: every pause is as long as it may be. Those of this loop are recorded;
    other loops may have their own.
    """

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._loop = asyncio.get_running_loop()

    def uniform(self, least: float, most: float) -> float:
        if asyncio.get_running_loop() is self._loop:
            self.taken.append(most)
        return most


class Puppet:
    """A process that holds and waits on command: see programs/puppet.py."""

    def __init__(self, process: Running) -> None:
        self.process = process

    async def hears(self, line: str, *, until: str) -> str:
        """Send it a line, wait for its line that starts with `until`, and return the rest of that
        line.
        """
        self.process.tell(line)
        return await self.says(until)

    async def says(self, what: str) -> str:
        said = await self.process.said()
        assert said.startswith(what), f"the puppet was to say {what!r}, and said {said!r}"
        return said.removeprefix(what).strip()

    def stop(self) -> None:
        """kill -STOP: the process stands still, and does not notice it."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)


def keys_of(admin: Redis, name: str) -> list[str]:
    """All keys that the server has of a name."""
    return sorted(admin.scan_iter(f"headgate:{{{name}}}*"))


def content_of(admin: Redis, name: str) -> dict[str, Any]:
    """Everything that the server knows of a name, to the last bit."""
    return {key: contents(admin, key) for key in keys_of(admin, name)}


def contents(admin: Redis, key: str) -> Any:
    if admin.type(key) == "hash":  # its fields have no order
        return admin.execute_command("HGETALL", key, **{NEVER_DECODE: []})
    return admin.dump(key)


def holders_of(admin: Redis, name: str) -> int:
    """How many held permits the server knows of."""
    return sum(member.startswith("+") for member in members_of(admin, name))


def waiters_of(admin: Redis, name: str) -> int:
    """How many callers stand in the server's queue."""
    return sum(":" in member and not member.startswith("+") for member in members_of(admin, name))


def members_of(admin: Redis, name: str) -> list[str]:
    return list(admin.zrange(f"headgate:{{{name}}}:who", 0, -1))


def commands_of(admin: Redis) -> dict[str, int]:
    """How often each command ran since `config_resetstat`, those inside scripts too."""
    return {
        name.removeprefix("cmdstat_"): stat["calls"]
        for name, stat in admin.info("commandstats").items()
    }
