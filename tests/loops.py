"""The event loops on which the tests can run, by `--loop`: asyncio's own, the same with eager
tasks, uvloop's (F20).

This module has the names of the loops, and the reason why one is missing. A test in memory runs in
virtual time on asyncio's loop, which is made for that, and in real milliseconds on any other.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

OWN = "asyncio"
_present = OWN  # the loop on which the tests of this run run


class LoopMissing(Exception):
    """This Python, or this machine, does not have it."""


def eager() -> Callable[[], asyncio.AbstractEventLoop]:
    """A task begins where it is made, before its maker goes on."""
    if sys.version_info < (3, 12):
        raise LoopMissing("eager tasks came with Python 3.12")

    def new() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop()
        loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    return new


def uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Its timers are kept where tests look for those of asyncio's."""
    try:
        from uvloop import Loop
    except ImportError:
        raise LoopMissing(
            "uvloop is not installed: there is no wheel of it for this machine"
        ) from None

    class Observed(Loop):  # type: ignore[misc]  # as far as is known, it is Any
        def __init__(self) -> None:
            super().__init__()
            self._planned: WeakSet[Planned] = WeakSet()

        @property
        def _scheduled(self) -> list[Planned]:
            return [timer for timer in self._planned if not timer.over]

        def call_later(
            self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
        ) -> Any:
            planned = Planned(callback)
            handle = planned.handle = super().call_later(delay, planned, *args, context=context)
            self._planned.add(planned)
            return handle

        def call_at(
            self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
        ) -> Any:
            return self.call_later(when - self.time(), callback, *args, context=context)

        def close(self) -> None:
            """Where warnings are errors, uvloop's own close() never ends if a connection is open.
            Its warning interrupts the closing of that connection, for which it then waits.
            """
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                super().close()

    return Observed


class Planned:
    """One call later, as long as the loop has it."""

    handle: Any

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self.over = False

    def __call__(self, *args: Any) -> object:
        self.over = True
        return self._callback(*args)

    def cancelled(self) -> bool:
        return bool(self.handle.cancelled())


LOOPS: dict[str, Callable[[], Callable[[], asyncio.AbstractEventLoop]]] = {
    OWN: lambda: asyncio.SelectorEventLoop,
    "eager": eager,
    "uvloop": uvloop,
}


def tell_on(name: str) -> None:
    """From here on asyncio.run, and pytest-asyncio, take the loop of that name.

    Raises LoopMissing.
    """
    global _present
    if name == OWN:
        return
    new = LOOPS[name]()

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return new()

    asyncio.set_event_loop_policy(Policy())
    _present = name


def virtual() -> bool:
    """Whether the loop of this run is the one that has a virtual twin."""
    return _present == OWN
