"""The state that a fork leaves in the child: copies of all objects of the parent, before the
product learns of the fork and after.

This module copies a store with its queues, and permits with their homes. A child has a loop of its
own. The parent's is there too, as a copy in which nothing happens any more.
"""

from __future__ import annotations

from copy import copy, deepcopy
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

from headgate import Limiter
from headgate.permit import Permit
from headgate.stores.context_stack import ContextStack
from headgate.stores.redis.permit_issuer import PermitIssuer
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.routing import Routing
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.store import RedisStore
from headgate.stores.redis.threads import Threads
from tests.simulation.loop import ProcessLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


def forked(store: RedisStore, limiters: Sequence[Limiter]) -> list[Limiter]:
    """The limiters of a store, in the child."""
    child = copy(store)
    child.topology = deepcopy(store.topology)
    child._clients, child._new = (
        dict(store._clients),
        dict(store._new),
    )  # the parent still uses the connections that the child forgets
    if store._fast_path is not None:
        child._fast_path = copy(store._fast_path)
        child._fast_path._connections = {}  # connections that the child closes stay open
    queues = {name: queue_in(child, queue) for name, queue in store._queues.items()}
    child._queues, child._kept = (
        WeakValueDictionary(queues),
        {name: queues[name] for name in store._kept},
    )
    child.forked()
    return [
        limiter_with(limiter, queues[cast("RedisQueue", limiter._queue).name])
        for limiter in limiters
    ]


def queue_in(store: RedisStore, queue: RedisQueue) -> RedisQueue:
    its = copy(queue)
    its._store, its._inside, its.limits = store, ContextStack(), copy(queue.limits)
    its.routing = Routing(its, store)
    its.acquire = its.routing.acquire
    its.issuer = PermitIssuer(its.name, its.key, its.limits, its.routing, its.change)
    its.threads, former = Threads(its, store), queue.threads
    its.threads.no_fast_path_until = former.no_fast_path_until
    its.threads._warned = former._warned
    its.limits._history = deepcopy(queue.limits._history)
    return its


def twin(thing: T) -> T:
    """The same object in a child's memory: a fork does not ask it whether it can be copied."""
    its = object.__new__(type(thing))
    for name in chain(vars(thing) if hasattr(thing, "__dict__") else (), slots_of(type(thing))):
        if name != "__weakref__" and hasattr(thing, name):
            object.__setattr__(its, name, getattr(thing, name))
    return its


def slots_of(kind: type) -> Iterator[str]:
    return chain.from_iterable(getattr(base, "__slots__", ()) for base in kind.__mro__)


def limiter_with(limiter: Limiter, queue: RedisQueue) -> Limiter:
    its = twin(limiter)
    its._queue = queue
    return its


def permit_with(permit: Permit, queue: RedisQueue, still: ProcessLoop) -> Permit:
    """The copy of a permit, whose home is in a loop that stands still."""
    its = twin(permit)
    its._queue = queue.issuer
    if isinstance(permit.home, LoopSession):
        its.home = loop_session = copy(permit.home)
        loop_session.client = copy(loop_session.client)
        loop_session.client.loop = still
    return its
