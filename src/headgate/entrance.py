"""The `async with` and `with` of limiters and classics, around a queue.

Only entering and leaving are here. The subclass gives the request of its blocks, and the queue
decides.

A signal handler can raise before the first line of `__exit__`. The limiter then never learns that
the block has ended, and the process would renew the permit for as long as it lives. So each block
has an `__exit__` of its own: a `Block` object, which holds the permit. Python loads the `Block`
before it calls `__enter__`, and drops it when the `with` statement ends. If Python could not call
the `Block`, the permit is dropped with it, and the permit's finalizer gives the capacity back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from operator import attrgetter
from threading import local
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import ref

from headgate.closed import Closed
from headgate.declaring import Undeclared
from headgate.keys import title
from headgate.permit import Lost, Outcome, Permit
from headgate.stores.memory.key_queue import KeyQueue
from headgate.stores.memory.queue import MemoryQueue

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.interfaces import Queue
    from headgate.request import Request


class Entrance:
    """A limiter or classic that tasks and threads can enter."""

    __slots__ = ("__weakref__", "_default", "_queue")

    def __init__(self, queue: Queue, default: Request, own: Declaration | None) -> None:
        """`own`: the limits to declare at the first acquire. None: declare nothing."""
        self._queue = queue if own is None else cast("Queue", Undeclared(self, queue, own))
        self._default = default
        kind = type(self)
        # In memory an interrupt leaks no more than with threading.Semaphore, and a Block would cost
        # time. So memory queues have no Block. A subclass with its own `__enter__` or `__exit__`
        # has none either: a Block would bypass it.
        if not isinstance(queue, (KeyQueue, MemoryQueue)) and (kind.__enter__, kind.__exit__) == (
            Entrance.__enter__,
            Entrance.__exit__,
        ):
            self.__class__ = with_blocks(kind)  # type: ignore[arg-type]  # a class is hashable

    def _use(self, queue: Queue, default: Request) -> None:
        """As `__init__`, for a queue that declares its limits itself, and needs no Block."""
        self._queue, self._default = queue, default

    def __copy__(self) -> Self:
        """Itself: a copy would share its state."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: its state belongs to this process; send what it was made "
            "from."
        )

    def _shut(self) -> None:
        if not isinstance(self._queue, Closed):
            self._queue = cast("Queue", Closed(self._queue))

    def __repr__(self) -> str:
        return f"<a block of {title(self._queue.name)}>"

    async def __aenter__(self) -> None:
        # From a local name, CPython 3.11 calls a slot's function faster (benchmarks, rate-async).
        enter = self._queue.enter_task
        if not enter():
            await self._queue.enter_waiting(self._default)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            leave = self._queue.leave
            leave()
        except Lost as lost:
            lost.watch.raise_loss(error)

    def __enter__(self) -> None:
        if not self._queue.enter():
            self._queue.enter_sync(self._default)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._queue.leave()
        except Lost as lost:
            lost.watch.raise_loss(error)


class ThreadBlocks(local):
    """The blocks of the current thread."""

    def __init__(self) -> None:
        self.enter: ref[Enter] | None = None  # the `__enter__` that was loaded last
        self.entered: set[ref[Block]] = set()  # a reference leaves when its Block is dropped


BLOCKS = ThreadBlocks()
NUMBERS = count()  # of blocks, in the order in which they begin


class Block:
    """One block, from the moment at which its `__exit__` is loaded."""

    __slots__ = ("__weakref__", "_entered", "_plain_exit", "_ref", "entrance", "number", "permit")

    def __init__(self, entrance: Entrance | None, plain_exit: Callable[..., None]) -> None:
        self.entrance = entrance  # None until it is entered, if it is a ClassBlock
        self.permit: Permit | None = None  # while it is entered
        self._plain_exit = plain_exit
        self.number = -1
        # Where this block is registered while it is entered: the set of its thread, and the
        # reference there.
        self._entered = BLOCKS.entered
        self._ref: ref[Block] | None = None

    def enter(self, entrance: Entrance) -> None:
        self.entrance = entrance
        permit = entrance._queue.acquire_sync(entrance._default)
        # CPython runs no signal handler between the return of the call and this line.
        self.permit = permit
        if permit.guard is not None:
            permit.__enter__()
        self.number = next(NUMBERS)
        self._entered = BLOCKS.entered  # another thread may have loaded `__exit__`
        self._ref = ref(self, self._entered.discard)
        self._entered.add(self._ref)

    def __call__(self, *outcome: Outcome) -> None:
        self.leave(self.entrance, outcome)

    def leave(self, entrance: Entrance | None, outcome: tuple[Outcome, ...]) -> None:
        """End this block.

        If it is not open, end the block of `entrance` that this thread began last.
        """
        block = self if self.is_open(entrance) else last_block_of(entrance)
        if block is None:  # entered without a Block
            self._plain_exit(entrance, *outcome)
            return
        permit, block.permit = block.permit, None
        block._entered.discard(block._ref)
        # A permit that holds nothing and is not watched needs no release.
        if permit is not None and (permit.held or permit.watch is not None):
            permit.__exit__(*outcome)

    def is_open(self, entrance: Entrance | None) -> bool:
        return self.entrance is entrance and self.permit is not None


def last_block_of(entrance: Entrance | None) -> Block | None:
    """The innermost open block of `entrance` in this thread.

    A program can end a block by another `__exit__` than its own: one that it loaded by hand, or one
    for `ExitStack.push`.
    """
    blocks = [each() for each in BLOCKS.entered.copy()]
    its = [each for each in blocks if each is not None and each.is_open(entrance)]
    return max(its, key=attrgetter("number"), default=None)


class ClassBlock(Block):
    """A block whose `__exit__` is loaded from the class, as contextlib.ExitStack does.

    The caller then passes the limiter as the first argument.
    """

    __slots__ = ()

    def __call__(self, entrance: Entrance, *outcome: Outcome) -> None:  # type: ignore[override]  # see above
        self.leave(entrance, outcome)


class Enter:
    """`__enter__`, from the moment at which it is loaded.

    A `with` statement loads `__enter__`, then `__exit__`, and then calls the first. So does
    ExitStack.enter_context. Only an `__exit__` that was loaded right after an `__enter__` belongs
    to it. (Python 3.14 loads them the other way round, so there no Block holds a permit.)
    """

    __slots__ = ("__weakref__", "_plain_enter", "block", "entrance")

    def __init__(self, entrance: Entrance | None, plain_enter: Callable[..., None]) -> None:
        self.entrance = entrance
        self.block: ref[Block] | None = None  # the `__exit__` that was loaded next
        self._plain_enter = plain_enter

    def __call__(self, *called_with: Entrance) -> None:
        entrance = called_with[0] if self.entrance is None else self.entrance
        block = None if self.block is None else self.block()
        self.block = BLOCKS.enter = None
        if block is None:
            self._plain_enter(entrance)
        else:
            block.enter(entrance)


class EnterLookup:
    """A descriptor: each lookup of `__enter__` returns a new `Enter`."""

    def __init__(self, plain_enter: Callable[..., None]) -> None:
        self._plain_enter = plain_enter

    def __get__(self, entrance: Entrance | None, kind: object = None) -> Enter:
        enter = Enter(entrance, self._plain_enter)
        BLOCKS.enter = ref(enter)
        return enter


class ExitLookup:
    """A descriptor: each lookup of `__exit__` returns a new `Block`."""

    def __init__(self, plain_exit: Callable[..., None]) -> None:
        self._plain_exit = plain_exit

    def __get__(self, entrance: Entrance | None, kind: object = None) -> Block:
        block = (ClassBlock if entrance is None else Block)(entrance, self._plain_exit)
        loaded = BLOCKS.enter
        enter = None if loaded is None else loaded()
        if enter is not None and enter.entrance is entrance:
            enter.block = ref(block)
        BLOCKS.enter = None
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
        """Do nothing."""


@cache
def with_blocks(kind: Any) -> type[Entrance]:
    """A subclass of `kind`, in which the blocks of threads hold their permits."""

    names: dict[str, Any] = {
        "__slots__": (),
        "__enter__": EnterLookup(kind.__enter__),
        "__exit__": ExitLookup(kind.__exit__),
    }
    names["_made_from"] = kind
    names |= {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (HiddenBase, kind), names)
