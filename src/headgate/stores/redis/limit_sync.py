"""The limits that this process declares for one name, in step with the limits in the store.

All loops and threads of the process change this object. There is no lock: a signal handler or a
finalizer that interrupts its owner might wait for ever. Each change reads and assigns with no call
and no new object between the two. So Python runs no other thread, no signal handler and no
finalizer between them.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from headgate.gate.compile import Declaration, read_program
from headgate.stores.limit_history import HOLD, Declarations, warn_of_processes
from headgate.stores.redis.protocol.operations import ASKED, DECLARED, KNOWN, OFFERED, UPDATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.stores.redis.protocol.operations import Operation


class LimitSync:
    def __init__(self, name: str, declared: Declaration) -> None:
        self.name = name
        self.declared = declared
        # The next acquire states this about the limits (operations.py). ASKED until an acquire
        # declares some. DECLARED or UPDATED until a call has brought them to the server. Then
        # KNOWN.
        self.declares = ASKED
        # The limits that a reply named while `declares` is ASKED.
        self._in_store: Declaration | None = None
        self._history = Declarations()
        # Our limits, if another process has replaced them. Until `_held_until`, no acquire may
        # declare them again.
        self._turned_down: Declaration | None = None
        self._held_until = 0.0
        # The moment at which a session declares `_turned_down` again, even without an acquire.
        # Infinity: never, because there are none or an update holds.
        self.moment = inf

    @property
    def has_limits(self) -> bool:
        return self.declares != ASKED

    @property
    def present(self) -> Declaration:
        """The limits of the store, as far as is known, until this process declares its own."""
        if self._in_store is not None and self.declares == ASKED:
            return self._in_store
        return self.declared

    def follow(self, declared: Declaration) -> None:
        """An acquire declares limits."""
        before = self.declared
        if self._may_declare(declared):
            self._history.declare(declared.program)
            if self.declared is before:  # and no signal handler has updated them meanwhile
                self._turned_down, self.moment = None, inf
                self.declared, self.declares = declared, DECLARED

    def foresee(self, declared: Declaration) -> Declaration:
        """The limits that would hold for this process after `follow(declared)`."""
        return declared if self._may_declare(declared) else self.declared

    def _may_declare(self, declared: Declaration) -> bool:
        program, ours, turned_down = declared.program, self.declared.program, self._turned_down
        if turned_down and turned_down.program == program and monotonic() < self._held_until:
            return False
        unchanged = program == ours and self.declares != ASKED
        return not (unchanged or self._history.overruled(program, ours))

    def limits_for_call(
        self, asks: bool, operations: Sequence[Operation]
    ) -> tuple[Declaration, int]:
        """The limits that a call names, and its statement. `asks`: it has acquires or waiters."""
        # Another thread may change `declares` between two lines, so each line checks it again.
        if asks and self.declares == ASKED:  # the first acquire declares
            self.declares = DECLARED
        if self._in_store is not None and self.declares == ASKED:
            return self._in_store, choose_statement(ASKED, asks, operations)
        # Read `declares` first, because `update` writes it last. So no call sends older limits as
        # an update.
        declares = self.declares
        return self.declared, choose_statement(declares, asks, operations)

    def note_carried(self, program: str, statement: int) -> None:
        """The server has carried out a call with these limits and this statement about them.

        So it knows the limits, unless this process has declared others meanwhile.
        """
        is_new = statement in (DECLARED, UPDATED)
        if is_new and self.declares == statement and self.declared.program == program:
            self.declares = KNOWN

    def read(self, program: str) -> Declaration:
        """Parse the store's limits. If they are damaged, the next call declares ours again."""
        try:
            return read_program(program)
        except ValueError:
            self._turned_down, self.moment = None, inf
            if self.declares == KNOWN:
                self.declares = DECLARED
            raise

    def note_overruled(self, in_force: Declaration) -> bool:
        """Take over limits of another process. False: this process has its own to declare."""
        up_to_date = self.declares == KNOWN
        if up_to_date:
            self.declared = in_force
        elif self.declares == ASKED:
            self._in_store = in_force
        return up_to_date or self.declares == ASKED

    def note_offer(self, offered: Declaration) -> None:
        """The store has these limits, but no process has declared them."""
        if self.declares == KNOWN:
            self.declares = DECLARED  # the store has lost ours
        elif self.declares == ASKED:
            self._in_store = offered

    def note_turned_down(self, program: str, in_force: Declaration, wait: int, now: float) -> bool:
        """The server has turned down our limits `program`. Go by those `in_force` for `wait`
        microseconds.

        `wait` -1: an update holds, so go by them for HOLD. Return False if this process has
        declared other limits meanwhile: they have still to be sent.
        """
        until = now + (HOLD if wait < 0 else wait) / 1_000_000
        ours = self.declared
        if self.declares != DECLARED or ours.program != program:
            return False  # ours changed meanwhile
        self.declared, self.declares, self._turned_down = in_force, KNOWN, ours
        self._held_until, self.moment = until, until if wait >= 0 else inf
        # An update overrules declarations in code on purpose, so nothing is logged.
        if wait >= 0:
            warn_of_processes(self.name, program, in_force.program)
        return True

    def declare_if_due(self, now: float) -> None:
        """Declare the limits again that were turned down, if their time has come."""
        ours = self._turned_down
        # Other limits may be declared meanwhile, so the last check makes no call.
        if ours is not None and now >= self.moment and self._turned_down is ours:
            self._turned_down, self.moment = None, inf
            self.declared, self.declares = ours, DECLARED

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if no acquire has declared any. `known`: the store has them."""
        if self.declares == ASKED:
            self.declared, self.declares = declared, KNOWN if known else ASKED

    def update(self, declared: Declaration, former: Declaration | None = None) -> str:
        """Declare limits that overrule all others. Return the limits that this process declared
        last, as text: the call names them, because the server may never have seen them.
        """
        # The update overrules the limits in the code, too, even if no acquire has declared them.
        if former is not None or self.declares == ASKED:
            self._history.declare((former or self.declared).program)
        history, program = self._history, declared.program
        history.update(program)
        # Of two threads that update at once, the last one here sets the history and `declared`.
        history.overruling = program
        self._turned_down, self.moment = None, inf
        self.declared, self.declares = declared, UPDATED
        return self._history.last


def choose_statement(declares: int, asks: bool, operations: Sequence[Operation]) -> int:
    """The statement of a call about its limits.

    Any call brings a declaration or an update that is due. Otherwise a call without acquires and
    waiters, such as that of a status or a pause, declares nothing.
    """
    if asks or declares in (DECLARED, UPDATED):
        return DECLARED if declares == ASKED else declares
    # The operation that needs the most decides. Without operations, the statement stays as it is.
    needs = {operation.needs for operation in operations} or {declares}
    return KNOWN if KNOWN in needs else OFFERED if OFFERED in needs else ASKED
