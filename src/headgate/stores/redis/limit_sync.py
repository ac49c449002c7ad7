"""What this process declares for one name, kept in step with what holds in the store.

Here lives when a call declares limits, and what becomes of them when other processes or an update
have declared others.

All loops and threads of the process change this, and none may wait for another: a signal handler or
a finalizer that has interrupted one of them may wait for an answer of this loop. So there is no
lock. Each change reads and assigns with no call and no new object between the two: Python runs
neither a thread, nor a signal handler, nor a finalizer there.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from headgate.gate.compile import Declaration, read_program
from headgate.stores.limit_history import HOLD, Declarations, warn_of_processes
from headgate.stores.redis.protocol.messages import ASKED, DECLARED, KNOWN, UPDATED, how_said

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from headgate.stores.redis.protocol.messages import Operation


class LimitSync:
    """The limits of one name, as this process declares and knows them."""

    def __init__(self, name: str, declared: Declaration) -> None:
        self.name = name
        self.declared = declared
        # ASKED until an acquire declares the limits. Then DECLARED or UPDATED, until a call has
        # carried the declaration to the server: KNOWN.
        self.declares = ASKED
        self._heard: Declaration | None = None  # what holds there, while nothing is declared here
        self._said = Declarations()
        # What this process has declared, and another one has replaced just now.
        self._turned_down: Declaration | None = None
        self._until = 0.0  # the moment from which it may be declared again
        self._comes_again = False  # it is declared again by itself: no update holds

    @property
    def known(self) -> bool:
        """Whether the limits were declared, or taken from the store."""
        return self.declares != ASKED

    @property
    def present(self) -> Declaration:
        return self._heard or self.declared

    def follow(self, declared: Declaration) -> None:
        """An acquire declares its limits: the last declaration wins, unless an update or another process has overruled it."""
        known = self.declared
        if self._may_declare(declared):
            self._said.declare(declared.program)
            if self.declared is known:  # and no signal handler has updated them meanwhile
                self._turned_down, self.declared, self.declares = None, declared, DECLARED

    def foresee(self, declared: Declaration) -> Declaration:
        """What would hold for this process if `declared` were declared now."""
        return declared if self._may_declare(declared) else self.declared

    def _may_declare(self, declared: Declaration) -> bool:
        program, present, turned_down = declared.program, self.declared.program, self._turned_down
        if turned_down and turned_down.program == program and monotonic() < self._until:
            return False
        known = program == present and self.declares != ASKED
        return not (known or self._said.overruled(program, present))

    def said(
        self, asks: bool = True, operations: list[Operation] | None = None
    ) -> tuple[Declaration, int]:
        """The limits that a call names, and what it says of them: a call that `asks` for permits declares ours.

        Read the other way round than they are written: earlier ones are no update.
        """
        if self.declares == ASKED:
            if asks and self.declares == ASKED:
                self.declares = DECLARED
            if self._heard is not None and self.declares == ASKED:
                return self._heard, how_said(ASKED, asks, operations or [])
        declares = self.declares
        return self.declared, how_said(declares, asks, operations or [])

    def carried(self, program: str, how: int) -> None:
        """A call that said so was carried out: unless something else was declared meanwhile, it is known."""
        if how in (DECLARED, UPDATED) and self.declares == how and self.declared.program == program:
            self.declares = KNOWN

    def read(self, program: str) -> Declaration:
        """The limits that the server says hold. When they are damaged, the next call declares ours again."""
        try:
            return read_program(program)
        except ValueError:
            self._turned_down, self.declares = None, self.declares or DECLARED
            raise

    def overruled(self, holds: Declaration) -> bool:
        """Others have declared something else than was known here. False: so have we."""
        known = self.declares == KNOWN
        if known:
            self.declared = holds
        elif self.declares == ASKED:
            self._heard = holds
        return known or self.declares == ASKED

    def turned_down(self, program: str, holds: Declaration, wait: int) -> bool:
        """What we have declared must wait for `wait` microseconds (-1: as long as an update holds): what holds, holds for us.

        False: something else was declared meanwhile.
        """
        until = monotonic() + (HOLD if wait < 0 else wait) / 1_000_000
        ours = self.declared
        if self.declares != DECLARED or ours.program != program:
            return False
        self.declared, self.declares, self._turned_down = holds, KNOWN, ours
        self._until, self._comes_again = until, wait >= 0
        if (
            wait >= 0
        ):  # an update is meant to hold, whatever the code of others says: a limit that was adopted, say
            warn_of_processes(self.name, program, holds.program)
        return True

    def declare_in_time(self, loop: AbstractEventLoop) -> None:
        """See to it, in `loop`, that what was turned down is declared again: the loop that heard of it may be gone by then."""
        ours, left = self._turned_down, self._until - monotonic()
        if ours is None or not self._comes_again:
            return
        if left > 0:
            loop.call_later(left, self._declare_again, ours)
        else:
            self._declare_again(ours)

    def _declare_again(self, ours: Declaration) -> None:
        """If nothing else was declared since."""
        if self._turned_down is ours:
            self._turned_down, self.declared, self.declares = None, ours, DECLARED

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if none are declared here."""
        if self.declares == ASKED:
            self.declared, self.declares = declared, KNOWN if known else ASKED

    def update(self, declared: Declaration, former: Declaration | None = None) -> str:
        """Declare come what may. Returns the operation that goes with it.

        It names the limits that it overrules, because the server may never have heard of them.
        """
        if former is not None or self.declares == ASKED:
            self._said.declare((former or self.declared).program)
        said, program = self._said, declared.program
        said.update(program)
        # Again, in one step with what follows: another thread may have updated them meanwhile.
        said.overruling = program
        self._turned_down, self.declared, self.declares = None, declared, UPDATED
        return f"update {self._said.last.replace(' ', ',') or '-'}"
