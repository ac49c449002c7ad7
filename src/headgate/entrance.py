"""The `async with` and `with` of limiters and classics, around a queue.

Only entering and leaving are here. The subclass gives the request of its blocks, and the queue
decides.

A signal handler can raise before the first line of `__exit__`. The limiter then never learns that
the block has ended, and the process would renew the permit for as long as it lives. So the block
itself holds its permit. A `with` statement loads `__exit__` before it calls `__enter__`, and keeps
the loaded method until it ends: here that is a `Block`. When an exception drops the block before it
has given its permit back, the permit goes back by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import local
from typing import Any, Self, cast
from weakref import ref

from headgate.closed import Closed
from headgate.declaring import Undeclared
from headgate.gate.compile import Declaration
from headgate.interfaces import Queue
from headgate.keys import title
from headgate.lease_watch import Lost
from headgate.permit import Outcome, Permit
from headgate.request import Request
from headgate.stores.memory.queue import MemoryQueue


class Entrance:
    """A limiter or classic that tasks and threads can enter."""

    __slots__ = ("__weakref__", "_default", "_queue")

    def __init__(self, queue: Queue, default: Request, own: Declaration | None) -> None:
        """`own`: the limits to declare at the first acquire. None: declare nothing."""
        self._queue = queue if own is None else cast("Queue", Undeclared(self, queue, own))
        self._default = default
        kind = type(self)
        # In memory an interrupt leaks no more than with threading.Semaphore, and the blocks would
        # cost time. So memory queues have none.
        if not isinstance(queue, MemoryQueue) and (kind.__enter__, kind.__exit__) == (
            Entrance.__enter__,
            Entrance.__exit__,
        ):
            self.__class__ = with_blocks(kind)  # type: ignore[arg-type]  # a class is hashable

    def __copy__(self) -> Self:
        """A copy would share its state: it is the same one."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: its state belongs to this process; send what it was made "
            "from."
        )

    def _shut(self) -> None:
        """Refuse all acquires from now on. A second call does nothing."""
        if not isinstance(self._queue, Closed):
            self._queue = cast("Queue", Closed(self._queue))

    def __repr__(self) -> str:
        return f"<a block of {title(self._queue.name)}>"

    async def __aenter__(self) -> None:
        # In two steps, CPython 3.11 calls a function from a slot faster (benchmarks, rate-async).
        enter = self._queue.enter_task
        if not enter():
            await self._queue.enter_waiting(self._default)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            leave = self._queue.leave
            leave()
        except Lost as lost:
            lost.watch.tell(error)

    def __enter__(self) -> None:
        if not self._queue.enter():
            self._queue.enter_sync(self._default)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._queue.leave()
        except Lost as lost:
            lost.watch.tell(error)


class ThreadBlocks(local):
    """The blocks of the thread that asks."""

    def __init__(self) -> None:
        # The block of the `with` statement that is about to call `__enter__`.
        self.loaded: ref[Block] | None = None
        self.entered: list[ref[Block]] = []  # in the order in which they began


BLOCKS = ThreadBlocks()


class Block:
    """One block, from the moment at which its `__exit__` is loaded."""

    __slots__ = ("__weakref__", "_leave", "entrance", "permit")

    def __init__(self, entrance: Entrance | None, leave: Callable[..., None]) -> None:
        self.entrance = entrance  # None: known when it is entered
        self.permit: Permit | None = None  # while it is entered
        self._leave = leave

    def enter(self, entrance: Entrance) -> None:
        self.entrance = entrance
        permit = entrance._queue.acquire_sync(entrance._default)
        self.permit = permit  # no signal handler runs before this
        if permit.guard is not None:
            permit.__enter__()
        BLOCKS.entered.append(ref(self))

    def __call__(self, *outcome: Outcome) -> None:
        self.leave(self.entrance, outcome)

    def leave(self, entrance: Entrance | None, outcome: tuple[Outcome, ...]) -> None:
        """End this block.

        If it is not open, end the block of `entrance` that this thread began last.
        """
        block = self if self.is_of(entrance) else last_block_of(entrance)
        if block is None:
            self._leave(entrance, *outcome)
            return
        permit, block.permit = block.permit, None
        forget_ended_blocks()
        # A permit that holds nothing and is not watched needs no end.
        if permit is not None and (permit.held or permit.watch is not None):
            permit.__exit__(*outcome)

    def is_of(self, entrance: Entrance | None) -> bool:
        return self.entrance is entrance and self.permit is not None


def last_block_of(entrance: Entrance | None) -> Block | None:
    """The block of this thread that began last, and whose own `__exit__` is not called.

    A program can load `__exit__` and keep it, and end the block by another one: by hand, or with
    `ExitStack.push`.
    """
    blocks = (each() for each in reversed(BLOCKS.entered))
    return next((each for each in blocks if each is not None and each.is_of(entrance)), None)


def forget_ended_blocks() -> None:
    """Remove the ended blocks from the end of this thread's list."""
    blocks = BLOCKS.entered
    while (last := blocks[-1:]) and ((block := last[0]()) is None or block.permit is None):
        # A signal handler may have ended some in that call. No call comes between these lines.
        if blocks[-1:] == last:
            del blocks[-1:]


class ClassBlock(Block):
    """A block whose `__exit__` is loaded from the class, as contextlib.ExitStack does."""

    __slots__ = ()

    def __call__(self, entrance: Entrance, *outcome: Outcome) -> None:  # type: ignore[override]  # a function gets its object
        self.leave(entrance, outcome)


class Exit:
    """`__exit__` of an entrance: each lookup returns the end of another block."""

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, entrance: Entrance | None, kind: object = None) -> Block:
        block = (ClassBlock if entrance is None else Block)(entrance, self._leave)
        BLOCKS.loaded = ref(block)
        return block


def made_from(entrance: Entrance) -> type[Any]:
    """The class that the user knows."""
    return getattr(type(entrance), "_made_from", type(entrance))


class HiddenBase:
    """A base that comes before the user's class.

    `with_blocks` makes a hidden subclass. This base keeps the user's `__init_subclass__` from
    running for it.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nothing."""


@cache
def with_blocks(kind: Any) -> type[Entrance]:
    """A subclass of `kind`, in which the blocks of threads hold their permits."""

    def enter(entrance: Entrance) -> None:
        loaded, BLOCKS.loaded = BLOCKS.loaded, None
        block = None if loaded is None else loaded()
        if block is None or block.permit is not None or block.entrance not in (entrance, None):
            kind.__enter__(entrance)  # nothing has loaded an `__exit__` for this call
        else:
            block.enter(entrance)

    names: dict[str, Any] = {"__slots__": (), "__enter__": enter, "__exit__": Exit(kind.__exit__)}
    names["_made_from"] = kind
    names |= {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (HiddenBase, kind), names)
