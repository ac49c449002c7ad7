"""The two shells of every noun: `async with` and `with` around a line.

Here lives entering and leaving, and nothing else: what is asked for is the noun's, what happens is the line's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

from headgate.blocks import with_blocks
from headgate.declaring import Undeclared
from headgate.permit import Outcome
from headgate.stores.memory import MemoryLine
from headgate.watch import Lost

if TYPE_CHECKING:
    from headgate.gate.rules import Declaration
    from headgate.line import Front
    from headgate.request import Request

__all__ = ["Entrance", "Outcome"]


class Entrance:
    """Something to enter: by any number of tasks and threads at once, again and again."""

    __slots__ = ("__weakref__", "_default", "_line")

    def __init__(self, line: Front, default: Request, own: Declaration | None) -> None:
        """`own`: what the first acquire declares; None: nothing."""
        self._line = line if own is None else cast("Front", Undeclared(self, line, own))
        self._default = default
        kind = type(self)
        if not isinstance(line, MemoryLine) and (kind.__enter__, kind.__exit__) == (Entrance.__enter__, Entrance.__exit__):
            self.__class__ = with_blocks(kind)  # type: ignore[arg-type]  # a class is hashable

    def __copy__(self) -> Self:
        """A copy would share its state: it is the same one."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} cannot be pickled: its state belongs to this process; send what it was made from.")

    async def __aenter__(self) -> None:
        if not self._line.enter_task():
            await self._line.enter_later(self._default)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._line.leave()
        except Lost as lost:
            lost.watch.tell(error)

    def __enter__(self) -> None:
        if not self._line.enter():
            self._line.enter_sync(self._default)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._line.leave()
        except Lost as lost:
            lost.watch.tell(error)
