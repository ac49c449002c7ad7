"""The limits of a name in memory before an acquire has declared any, and the coroutine forms of
methods that never wait.

The methods here take no lock, so any code may call them at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.stores.refusals import unknown_limiter

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.stores.limit_history import Declarations
    from headgate.stores.status import Status


class Known:
    """A part of a queue in memory.

    MemoryQueue inherits these methods, which need no lock of their own.
    """

    __slots__ = ()

    name: str
    declared: Declaration
    _said: Declarations
    _undeclared: bool

    if TYPE_CHECKING:

        def status(self, own: Declaration | None = None) -> Status: ...
        def update(self, declared: Declaration, former: Declaration | None = None) -> None: ...
        def pause(self, time: int) -> None: ...
        def resume(self) -> None: ...
        def reset(self) -> None: ...

    def describe(self) -> str:
        return self.status().line()

    def foresee(self, declared: Declaration) -> Declaration:
        """The limits that would hold if `declared` were declared now."""
        return (
            self.declared
            if self._said.overruled(declared.program, self.declared.program)
            else declared
        )

    async def learn(self) -> Declaration:
        return self.learn_sync()

    def learn_sync(self) -> Declaration:
        """The limits of the name. Raises UnknownLimiterError when no process has declared any."""
        if self._undeclared:
            raise unknown_limiter(self.name)
        return self.declared

    def once_known(self, said: str, act: Callable[[], None]) -> None:
        self.learn_sync()
        act()

    # Coroutines of operations that never wait -----------------------------------------------------

    async def astatus(self, own: Declaration | None = None) -> Status:
        return self.status(own)

    async def aupdate(self, declared: Declaration, former: Declaration | None = None) -> None:
        self.update(declared, former)

    async def apause(self, time: int) -> None:
        self.pause(time)

    async def aresume(self) -> None:
        self.resume()

    async def areset(self) -> None:
        self.reset()
