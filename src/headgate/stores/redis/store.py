"""The store on Redis, one server or several: queues by name, and a client for each event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

from headgate.counts import STORE_CALLS, Histogram, remember_units
from headgate.errors import StoreError
from headgate.gate.compile import NO_LIMITS, Declaration
from headgate.keys import whole_of
from headgate.stores.limit_history import Written, note_limits
from headgate.stores.loops import no_loop
from headgate.stores.redis.diagnosis import Diagnosis, diagnose
from headgate.stores.redis.fast_path import FastPath
from headgate.stores.redis.index import Refresher
from headgate.stores.redis.listing import RedisLists, encoded_names
from headgate.stores.redis.protocol.calls import keys_of
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.session.delivery import Delivery, flush
from headgate.stores.redis.session.loop_session import LoopSession, SessionQueue
from headgate.stores.redis.texts import RedisTexts
from headgate.stores.redis.transport.client import Client
from headgate.stores.redis.transport.endpoint import Endpoint
from headgate.stores.redis.transport.outages import outages_of
from headgate.stores.redis.transport.portal import NoPortalError, blocking, portal_loop
from headgate.stores.redis.transport.shutdown import register
from headgate.stores.redis.transport.single_call import run_script
from headgate.stores.redis.transport.tasks import begun, stop, trouble_of
from headgate.stores.redis.transport.topology import Topology
from headgate.stores.redis.transport.url import topology_of
from headgate.stores.status import Status
from headgate.threads import living

FEWEST_QUEUES = 1024  # the store forgets idle queues only if it keeps more than these
POLL_INTERVAL = 0.005  # seconds between two looks at another loop
STATUSES = 500  # `astatuses` asks for so many at once, which takes about a tenth of a second
CLOSING_TIMEOUT = 3.0  # seconds that a loop gets to close, which can take 2 s


class Forgotten(NamedTuple):
    """The permits and requests that kept the state of a name. If both are 0, it was dropped."""

    held: int
    waiting: int
    known: bool  # there was a state


class RedisStore:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._queues: WeakValueDictionary[str, RedisQueue] = WeakValueDictionary()
        self._new: dict[str, RedisQueue] = {}  # not in `_queues` yet
        self._kept: dict[str, RedisQueue] = {}  # alive for the next limiter of the name
        self._most = FEWEST_QUEUES  # if `_kept` has more, idle queues are forgotten
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._refreshers: dict[asyncio.AbstractEventLoop, Refresher] = {}
        self._named: dict[str, float] = {}  # when the index last got each name from this process
        self._fast_path: FastPath | None = None
        self._delivery = Delivery()
        self._written: Written = {}  # where the first limiter of each name was made
        self.silent = False  # a server has not answered the last `read_statuses` in time
        STORES.add(self)
        weakref.finalize(self, retire, self._clients).atexit = False

    def queue(self, name: str, declared: Declaration) -> RedisQueue:
        """The queue of `name`, made with the limits `declared` if there is none.

        This declares nothing: an acquire does.
        """
        note_limits(self._written, name, declared.program)
        return self._queues.get(name) or self._new_queue(name, declared)

    def _new_queue(self, name: str, declared: Declaration) -> RedisQueue:
        """Make one queue for all threads and signal handlers that ask at the same time.

        There is no lock: a signal handler would wait for ever for the thread that it interrupts.
        Callers that come before `_queues` has the queue share the one in `_new`. A later caller
        makes another one in vain, because it takes the one in `_queues`.
        """
        made = self._new.setdefault(name, RedisQueue(self, name, declared))
        queue = self._queues[name] = self._kept[name] = self._queues.get(name) or made
        self._new.pop(name, None)
        self._forget_idle()
        return queue

    def whole_queue(self, name: str, declared: Declaration) -> RedisQueue | None:
        """For a key: the queue of the whole limiter."""
        whole = whole_of(name)
        if whole is None:
            return None
        return self._queues.get(whole) or self._new_queue(whole, declared)

    def queues(self) -> list[RedisQueue]:
        return living(self._queues)

    def calls(self) -> dict[tuple[str, str], Histogram]:
        """The durations of calls to this store, by server and error ("": answered)."""
        here, calls = f"{self.topology}", list(STORE_CALLS.items())
        return {(server, error): times for (store, server, error), times in calls if store == here}

    @property
    def available(self) -> bool:
        return not (self.silent or outages_of(self.topology).present)

    def usages(self) -> list[tuple[str, int, int]]:
        """For each queue: its name, the permits and waiters of this process."""
        return [(queue.name, *queue.routing.usage()) for queue in self.queues()]

    def _forget_idle(self) -> None:
        """Forget idle queues so rarely that the work for each new one stays constant."""
        if len(self._kept) > self._most:
            kept = {}
            for name, queue in self._kept.copy().items():
                if queue.routing.idle():
                    remember_units(name, queue.declared.capacity)
                else:
                    kept[name] = queue
            self._kept = kept
            self._most = max(FEWEST_QUEUES, 2 * len(self._kept))

    def session(self, queue: SessionQueue) -> LoopSession:
        client = self.client()
        session = client.senders.get(queue.key)
        # It may belong to a former queue of the name, which this store has forgotten.
        if not isinstance(session, LoopSession) or session.queue is not queue:
            session = client.senders[queue.key] = LoopSession(client, queue)
            # A signal handler may ask before the client has a refresher.
            if (refresher := self._refreshers.get(client.loop)) is not None:
                refresher.note_new(session)
        return session

    def client(self) -> Client:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise no_loop()
        client = self._clients.get(loop)
        if client is None or client.closed:
            client = Client(self.topology, self._delivery)
            register(client)
            self._clients[loop] = client
            self._refreshers[loop] = Refresher(client, ref(self), self._named)
            self.end_closed()
        return client

    def end_closed(self) -> None:
        """End the clients of closed loops: some loops close without notice to their tasks."""
        for loop, client in self._clients.copy().items():
            if loop.is_closed():
                client.lifecycle.end()
                self._clients.pop(loop, None)
                self._refreshers.pop(loop, None)

    def known_session(
        self, queue: SessionQueue, loop: asyncio.AbstractEventLoop
    ) -> LoopSession | None:
        """The session of `queue` in `loop`. It makes none: a signal handler may ask."""
        client = self._clients.get(loop)
        session = None if client is None or client.closed else client.senders.get(queue.key)
        return session if isinstance(session, LoopSession) and session.queue is queue else None

    async def flush(self, name: str) -> None:
        """Wait until the server has all that this process sent under `name` and its keys."""
        if asyncio._get_running_loop() is None:
            raise no_loop()
        queues = [
            queue
            for queue in self.queues()
            if queue.name == name or queue.name.startswith(f"{name}:")
        ]
        flushed = False
        while not flushed:  # If a loop closes meanwhile, the portal takes over its operations.
            self.end_closed()
            loops = {asyncio.get_running_loop()}.union(*(each.routing.loops() for each in queues))
            if (of_threads := portal_loop()) is not None:
                loops.add(of_threads)
            flushed = all(
                await asyncio.gather(
                    *(flush_in(loop, queues) for loop in loops if not loop.is_closed())
                )
            )

    def away(self, key: str) -> bool:
        """Whether the server of `key` is unavailable. If so, the client asks until it answers."""
        loop = asyncio._get_running_loop() or portal_loop()
        client = None if loop is None else self._clients.get(loop)
        return client is not None and client.availability.is_unavailable(key)

    def fast_path(self) -> FastPath:
        found = self._fast_path
        if found is None:
            made = FastPath(self.topology)
            # This line calls no function, so no other thread comes in between: the first one stays.
            found = self._fast_path = self._fast_path or made
        return found

    def used_fast_path(self) -> FastPath | None:
        return self._fast_path

    def forked(self) -> None:
        """In the child of a fork: forget all that is the parent's."""
        for client in self._clients.values():
            client.forked()
        self._clients.clear()
        self._refreshers.clear()
        if self._fast_path is not None:
            self._fast_path.forked()
            self._fast_path = None
        for queue in self.queues():
            queue.routing.forked()

    async def forget(self, name: str) -> Forgotten:
        """Drop the state of an encoded name, or of an encoded `name:key`, if it is idle.

        Raises StoreError when the store cannot be asked.
        """
        keys = keys_of(f"headgate:{{{name}}}")
        held, waiting, known = await run_script(self.topology, "forget()", library().forget, keys)
        return Forgotten(held, waiting, bool(known))

    async def encoded_names(self) -> list[str]:
        """The names in the index, also those of classics (`Semaphore/name`)."""
        return await encoded_names(self.topology, "headgate")

    async def astatuses(self, names: Sequence[str], timeout: float) -> dict[str, Status | None]:
        """The status of each of these encoded names. This declares nothing.

        None: its server refuses, or has not answered within `timeout` seconds. No later name of
        such a server is asked for. After three times `timeout` this asks no more, and leaves out
        the remaining names.
        """
        found: dict[str, Status | None] = {}
        silent: set[Endpoint | None] = set()
        end = monotonic() + 3 * timeout
        for start in range(0, len(names), STATUSES):
            if monotonic() > end:
                break
            part = [self.queue(name, NO_LIMITS) for name in names[start : start + STATUSES]]
            servers = {queue: self.topology.where(queue.key) for queue in part}
            asked = [queue for queue in part if servers[queue] not in silent]
            statuses = await statuses_of(asked, timeout)
            silent |= {servers[each] for each in asked} - {servers[each] for each in statuses}
            found |= {queue.name: statuses.get(queue) for queue in part}
        return found

    async def diagnose(self) -> Diagnosis:
        return await diagnose(self.topology)

    @property
    def lists(self) -> RedisLists:
        return RedisLists(self.topology)

    @property
    def texts(self) -> RedisTexts:
        return RedisTexts(self.topology)

    def __str__(self) -> str:
        return f"Redis at {self.topology}"


def read_statuses(
    stores: list[RedisStore], is_shown: Callable[[str], bool], timeout: float
) -> list[tuple[str, Status]]:
    """The status of each queue that has limits and a name that `is_shown`, if its server answers
    within `timeout` seconds.

    All stores are asked at once. Those that were silent the last time are asked again: without
    other calls, only this one can find that they are back.
    """
    wanted = {
        queue: store
        for store in stores
        for queue in store.queues()
        if queue.limits.has_limits and is_shown(queue.name)
    }
    found: dict[RedisQueue, Status] = {}
    with suppress(StoreError, NoPortalError):
        if wanted:
            found = blocking(lambda: statuses_of(list(wanted), timeout), f"{len(wanted)} limiters")
    silent = {store for queue, store in wanted.items() if queue not in found}
    for store in stores:
        store.silent = store in silent
    return [(queue.name, status) for queue, status in found.items()]


async def statuses_of(queues: list[RedisQueue], timeout: float) -> dict[RedisQueue, Status]:
    """Ask for the status of all `queues` at once, and leave out those without an answer."""
    asked = [asyncio.ensure_future(queue.astatus()) for queue in queues]
    if asked:
        await asyncio.wait(asked, timeout=timeout)
    for each in asked:
        each.cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    named = zip(queues, found, strict=True)
    return {queue: status for queue, status in named if isinstance(status, Status)}


async def flush_queues(queues: list[RedisQueue]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # An operation of this turn may not have reached its session yet.
    await flush([session for queue in queues for session in queue.routing.sessions_of(loop)])


async def flush_elsewhere(queues: list[RedisQueue]) -> Exception | None:
    """Flush in another loop, in a task of that loop, and return the error.

    The coroutine of `flush_queues` is made here, in the task. If it were made earlier, and the task
    never began, Python would warn that it was never awaited.
    """
    return await trouble_of(flush_queues(queues))


async def flush_in(loop: asyncio.AbstractEventLoop, queues: list[RedisQueue]) -> bool:
    """Flush in any loop. False: the loop closed first, and the portal has its operations."""
    if loop is asyncio.get_running_loop():
        await flush_queues(queues)
        return True
    tasks = begin_flush(loop, queues)
    # The deadline counts from the first look that finds the other loop stopped. Our own loop may
    # have stalled since the look before.
    deadline = None
    while not loop.is_closed():
        if has_ended(tasks):
            return True
        # A cancelled task means that the loop is closing.
        if loop.is_running() and not (tasks and tasks[0].cancelled()):
            deadline = None
        elif deadline is None:
            deadline = monotonic() + CLOSING_TIMEOUT
        elif monotonic() > deadline:
            raise StoreError(
                "An event loop that used this limiter does not run, "
                "so its releases cannot be sent: run or close it."
            )
        await asyncio.sleep(POLL_INTERVAL)
    for task in tasks:
        stop(task)
    return False


def begin_flush(
    loop: asyncio.AbstractEventLoop, queues: list[RedisQueue]
) -> list[asyncio.Task[Exception | None]]:
    """Return a list that gets the flush's task when the other loop begins it."""
    tasks: list[asyncio.Task[Exception | None]] = []
    with suppress(RuntimeError):  # the loop was closed just now
        loop.call_soon_threadsafe(
            lambda: tasks.append(begun(flush_elsewhere(queues), "headgate-flush"))
        )
    return tasks


def has_ended(tasks: list[asyncio.Task[Exception | None]]) -> bool:
    """Whether the flush has ended and was not cancelled. Raises its error."""
    if not tasks or not tasks[0].done() or tasks[0].cancelled():
        return False
    if trouble := tasks[0].result():
        raise trouble
    return True


def retire(clients: dict[asyncio.AbstractEventLoop, Client]) -> None:
    """Close the connections of a store that was dropped."""
    for loop, client in clients.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(client.lifecycle.retire)


STORES: WeakSet[RedisStore] = WeakSet()
_by_identity: WeakValueDictionary[Hashable, RedisStore] = WeakValueDictionary()
_by_client: WeakKeyDictionary[Any, RedisStore] = WeakKeyDictionary()


def redis_store(where: Any) -> RedisStore:
    """The store for a URL or client object. The same servers with the same settings have one."""
    if isinstance(where, str):
        return store_at(topology_of(where))
    try:
        found = _by_client.get(where)
    except TypeError:  # it cannot be a key, so it is no client: `topology_of` raises the error
        found = None
    if found is None:
        found = _by_client[where] = store_at(topology_of(where))
    return found


def store_at(topology: Topology) -> RedisStore:
    return _by_identity.get(topology.identity) or _by_identity.setdefault(
        topology.identity, RedisStore(topology)
    )


def _after_fork() -> None:
    for store in list(STORES):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
