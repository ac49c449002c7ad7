"""What a fork leaves in the child: copies of all objects of the parent, before the product hears of it and after.

Here lives copying a store with its lines, and permits with what they came from. A child has a loop of its own; the parent's is
there too, as a copy in which nothing happens any more.
"""

from __future__ import annotations

import threading
from copy import copy, deepcopy
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

from headgate import Limiter
from headgate.permit import Permit
from headgate.stores.context_stack import Inside
from headgate.stores.redis.queue import RedisLine
from headgate.stores.redis.session.session import Lane
from headgate.stores.redis.store import RedisStore
from tests.simulation.loop import ProcessLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


def forked(store: RedisStore, limiters: Sequence[Limiter]) -> list[Limiter]:
    """The limiters of a store, in the child."""
    child = copy(store)
    child.topology = deepcopy(store.topology)
    child._links, child._new = (
        dict(store._links),
        dict(store._new),
    )  # what the child forgets, the parent still uses
    if store._shortcut is not None:
        child._shortcut = copy(store._shortcut)
        child._shortcut._talks = {}  # what the child closes stays open
    lines = {name: line_in(child, line) for name, line in store._lines.items()}
    child._lines, child._kept = (
        WeakValueDictionary(lines),
        {name: lines[name] for name in store._kept},
    )
    child.forked()
    return [
        limiter_with(limiter, lines[cast("RedisLine", limiter._line).name]) for limiter in limiters
    ]


def line_in(store: RedisStore, line: RedisLine) -> RedisLine:
    its = copy(line)
    its._store, its._inside, its._said, its._lock = (
        store,
        Inside(),
        deepcopy(line._said),
        threading.Lock(),
    )
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


def limiter_with(limiter: Limiter, line: RedisLine) -> Limiter:
    its = twin(limiter)
    its._line = line
    return its


def permit_with(permit: Permit, line: RedisLine, still: ProcessLoop) -> Permit:
    """The copy of a permit, whose home is in a loop that stands still."""
    its = twin(permit)
    its._line = line
    if isinstance(permit.home, Lane):
        its.home = lane = copy(permit.home)
        lane.link = copy(lane.link)
        lane.link.loop = still
    return its
